"""kvasir bench: what is measured, and how it is told. Speeds themselves are not tested."""

import csv
import io
import itertools
import math
import statistics

import pytest
from kvasir_cli import document, error, output, run
from tiny_gguf import CONTEXT, VOCAB

QUICK = ("-p", 4, "-n", 3, "-r", 2, "-t", 1)


def cases(rows):
    return [(row["test"], row["tokens"], row["depth"], row["batch"], row["threads"]) for row in rows]


def test_json_has_every_combination_once(tiny):
    lists = ("-p", "2,4", "-n", "3,5", "-d", "0,7", "-b", "1,3", "-t", "1,2", "-r", 2)
    rows = document("bench", "-m", tiny, *lists)["rows"]
    prefill = itertools.product(["prefill"], [2, 4], [0, 7], [1], [1, 2])
    decode = itertools.product(["decode"], [3, 5], [0, 7], [1, 3], [1, 2])
    assert len(rows) == 24
    assert set(cases(rows)) == {*prefill, *decode}


def test_zero_tokens_are_not_measured(tiny):
    assert cases(document("bench", "-m", tiny, *QUICK, "-p", 0)["rows"]) == [("decode", 3, 0, 1, 1)]
    assert cases(document("bench", "-m", tiny, *QUICK, "-n", 0)["rows"]) == [("prefill", 4, 0, 1, 1)]


def test_rates_follow_from_the_times(tiny):
    report = document("bench", "-m", tiny, *QUICK, "-b", 3, "-r", 5)
    assert 0 < report["load_seconds"] < report["first_token_seconds"]
    assert (report["model"], report["products"]) == (str(tiny), "float")
    assert report["weight_bytes"] > 0 and report["kernels"]
    for row in report["rows"]:
        seconds = row["seconds"]
        assert len(seconds) == 5 and all(0 < time < 10 for time in seconds)
        tokens, median = row["tokens"] * row["batch"], statistics.median(seconds)
        rates = {"median": tokens / median, "min": tokens / max(seconds), "max": tokens / min(seconds)}
        assert row["tokens_per_second"] == pytest.approx(rates)
        for what, share in (("bytes", "read"), ("operations", "operations")):
            peak = row[f"peak_{what}_per_second"]
            assert 0 < peak["min"] <= peak["median"] <= peak["max"] and math.isfinite(peak["max"])
            rate = row["bytes_read" if what == "bytes" else what] / median
            assert row[f"{what}_per_second"] == pytest.approx(rate)
            assert row[f"{share}_share"] == pytest.approx(rate / peak["median"])


def test_work_is_counted_token_by_token(tiny):
    """Operations and bytes by their definition, for the shape of the tiny model."""
    width, heads, kv_heads, head_dim, feed_forward = 32, 2, 1, 16, 48
    layer = width * head_dim * (2 * heads + 2 * kv_heads) + 3 * width * feed_forward
    depth, chunk = 5, 3

    def operations(positions, logit_rows):
        attention = sum(2 * heads * head_dim * (position + 1) for position in positions)
        return 2 * (len(positions) * layer + attention + logit_rows * VOCAB * width)

    def kv_bytes(length):
        return 2 * kv_heads * head_dim * 2 * length  # in f16

    report = document("bench", "-m", tiny, *QUICK, "-p", 7, "-d", depth, "-b", 3, "--prefill-chunk", chunk)
    weights = report["weight_bytes"]
    prefill, decode = report["rows"]
    assert prefill["operations"] == operations(range(depth, depth + 7), 1)
    assert prefill["bytes_read"] == 3 * weights + sum(map(kv_bytes, (8, 11, 12)))
    assert decode["operations"] == 3 * operations(range(depth, depth + 3), 3)
    assert decode["bytes_read"] == 3 * weights + 3 * sum(map(kv_bytes, (6, 7, 8)))


def test_csv_is_one_line_a_measurement(tiny):
    lines = output("bench", "-m", tiny, *QUICK, "-d", "0,7", "--csv").decode()
    rows = list(csv.DictReader(io.StringIO(lines)))
    assert [(row["test"], row["depth"]) for row in rows] == [
        ("prefill", "0"), ("prefill", "7"), ("decode", "0"), ("decode", "7")]
    for row in rows:
        assert None not in row and None not in row.values()
        assert row["model"] == str(tiny)
        assert float(row["tokens_per_second_min"]) <= float(row["tokens_per_second"])
        assert all(float(row[name]) > 0 for name in row if name.endswith(("second", "share")))


def test_table_is_aligned_markdown(tiny):
    head, blank, *table = output("bench", "-m", tiny, *QUICK, "-d", "0,7").decode().splitlines()
    assert head.startswith(f"{tiny}: ") and " kernels, float products; loaded in " in head and blank == ""
    assert len(table) == 2 + 4
    assert len({len(line) for line in table}) == 1  # of one width
    assert len({line.count("|") for line in table}) == 1
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    assert [row[:4] for row in cells[2:]] == [
        ["prefill 4", "0", "1", "1"], ["prefill 4", "7", "1", "1"], ["decode 3", "0", "1", "1"], ["decode 3", "7", "1", "1"]]


def test_takes_turns_on_request(tiny):
    result = run("bench", "-m", tiny, *QUICK, "-n", 0, "-r", 3, "--take-turns", "--csv", stdin=b"\n\n\n")
    assert (result.status, result.err) == (0, "ready\n" * 3)
    assert result.out.count(b"\n") == 2
    result = run("bench", "-m", tiny, *QUICK, "-n", 0, "-r", 3, "--take-turns", "--csv", stdin=b"\n")
    assert result.status == 1 and result.out == b""
    assert result.err.startswith("ready\nready\nkvasir: error: standard input has ended")


def test_forced_kernels_are_named(tiny):
    assert document("bench", "-m", tiny, *QUICK, env={"KVASIR_ISA": "scalar"})["kernels"] == "scalar"


def test_products_are_those_of_the_weights():
    assert document("bench", *QUICK)["products"] == "int8"
    assert document("bench", *QUICK, "--activations", "f32")["products"] == "float"


@pytest.mark.parametrize(("arguments", "words"), [
    (["-d", 60, "-p", 5], ["depth 60", "5 tokens", str(CONTEXT)]),
    (["-d", 60, "-n", 5], ["depth 60", "5 tokens", str(CONTEXT)]),
    (["-d", 65], ["depth 65", str(CONTEXT)]),
    (["-d", 2**31], [f"depth is {2**31}"]),
    (["-b", 2**31], [f"batch is {2**31}"]),
    (["-p", 0, "-n", 0], ["nothing to measure"]),
    (["-p", -1], ["prefill is -1"]),
    (["-n", "1,-2"], ["decode is -2"]),
    (["-b", 0], ["batch is 0"]),
    (["-d", -1], ["depth is -1"]),
    (["-t", "1,-1"], ["threads is -1"]),
    (["-r", 0], ["repetitions is 0"]),
    (["--prefill-chunk", 0], ["prefill_chunk is 0"]),
    (["-p", ""], ["--prefill", '""']),
    (["-n", "1,,2"], ["--decode", '""']),
    (["-d", "1;2"], ["--depth", '"1;2"']),
    (["--json", "--csv"], ["--json", "--csv"]),
])
def test_what_cannot_be_is_refused(tiny, arguments, words):
    message = error(2, "bench", "-m", tiny, *QUICK, *arguments)
    assert all(word in message for word in words), message


def test_context_that_fits_exactly_is_measured(tiny):
    assert len(document("bench", "-m", tiny, *QUICK, "-p", 4, "-n", 4, "-d", CONTEXT - 4)["rows"]) == 2
