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
REQUESTS = ("-p", 0, "-n", 0, "-r", 3, "-t", 1, "--request-prompt", 6, "--request-new", 5)


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


def test_requests_are_measured_on_demand(tiny):
    lists = ("-R", "1,3", "-d", "0,7", "-b", "1,2", "-t", "1,2", "-r", 2)
    rows = document("bench", "-m", tiny, *REQUESTS, *lists)["rows"]
    assert sorted(cases(rows)) == [("requests", 11, 0, *rest) for rest in itertools.product([1, 3], [1, 2])]
    rows = document("bench", "-m", tiny, *QUICK, "-R", "0,2", "--request-prompt", 3, "--request-new", 2)["rows"]
    assert cases(rows) == [("prefill", 4, 0, 1, 1), ("decode", 3, 0, 1, 1), ("requests", 5, 0, 2, 1)]
    assert [row["requests"] is None for row in rows] == [True, True, False]


@pytest.mark.parametrize(("chunk", "decoded"), [(512, 4 * 4), (4, 1 + 4)])
def test_request_rates_follow_from_the_times(tiny, chunk, decoded):
    """Decoded are those that come once all requests have their first. In steps of 4 tokens the first two requests have
    ended by then, and the third has one to go."""
    (row,) = document("bench", "-m", tiny, *REQUESTS, "-R", 4, "--prefill-chunk", chunk)["rows"]
    seconds, told = row["seconds"], row["requests"]
    assert len(seconds) == 3 and all(0 < time < 10 for time in seconds)
    rates = sorted(4 * (6 + 5) / time for time in seconds)
    assert row["tokens_per_second"] == pytest.approx({"median": rates[1], "min": rates[0], "max": rates[2]})
    assert (told["new_tokens"], told["decode_tokens"]) == (5, decoded)
    assert len(told["decode_seconds"]) == 3
    assert all(0 < part < whole for part, whole in zip(told["decode_seconds"], seconds))
    rates = sorted(decoded / time for time in told["decode_seconds"])
    assert told["decode_tokens_per_second"] == pytest.approx({"median": rates[1], "min": rates[0], "max": rates[2]})
    for part in "schedule", "draw":
        times = told[f"{part}_seconds"]
        assert len(times) == 3 and all(0 < time < whole for time, whole in zip(times, seconds))
        shares = [time / whole for time, whole in zip(times, seconds)]
        assert told[f"{part}_share"] == pytest.approx(statistics.median(shares))


def test_requests_of_one_new_token_decode_nothing(tiny):
    arguments = ("bench", "-m", tiny, *REQUESTS, "-R", 2, "--request-new", 1)
    (row,) = document(*arguments)["rows"]
    assert (row["tokens"], row["requests"]["decode_tokens"]) == (7, 0)
    assert row["requests"]["decode_tokens_per_second"] is None
    (row,) = csv.DictReader(io.StringIO(output(*arguments, "--csv").decode()))
    assert (row["tokens"], row["new_tokens"], row["decode_tokens_per_second"]) == ("7", "1", "")
    assert output(*arguments).decode().splitlines()[-1].count(" - ") == 2


def test_work_of_requests_is_that_of_their_positions(tiny):
    """Whatever the steps: of the last new token nothing is computed. The bytes read depend on the steps."""
    report = document("bench", "-m", tiny, *REQUESTS, "-p", 6, "-n", 4, "-d", "0,6", "-R", 3, "--prefill-chunk", 4)
    rows = {(row["test"], row["depth"]): row for row in report["rows"]}
    alone = rows["prefill", 0]["operations"] + rows["decode", 6]["operations"]
    assert rows["requests", 0]["operations"] == 3 * alone
    assert all(rows["requests", 0][name] is None for name in ("bytes_read", "bytes_per_second", "read_share"))
    peak = rows["requests", 0]["peak_operations_per_second"]["median"]
    rate = 3 * alone / statistics.median(rows["requests", 0]["seconds"])
    assert rows["requests", 0]["operations_per_second"] == pytest.approx(rate)
    assert rows["requests", 0]["operations_share"] == pytest.approx(rate / peak)


def test_csv_is_one_line_a_measurement(tiny):
    requests = ("-R", 2, *REQUESTS[-4:])
    lines = output("bench", "-m", tiny, *QUICK, "-d", "0,7", *requests, "--csv").decode()
    rows = list(csv.DictReader(io.StringIO(lines)))
    assert [(row["test"], row["depth"], row["batch"]) for row in rows] == [
        ("prefill", "0", "1"), ("prefill", "7", "1"), ("decode", "0", "1"), ("decode", "7", "1"), ("requests", "0", "2")]
    of_passes = {"bytes_per_second", "read_share"}
    of_requests = {"new_tokens", "decode_tokens_per_second", "decode_tokens_per_second_min",
                   "decode_tokens_per_second_max", "schedule_share", "draw_share"}
    for row in rows:
        assert None not in row and None not in row.values()
        assert row["model"] == str(tiny)
        assert {name for name in row if row[name] == ""} == (of_passes if row["test"] == "requests" else of_requests)
        assert float(row["tokens_per_second_min"]) <= float(row["tokens_per_second"])
        numbers = [row[name] for name in row if name.endswith(("second", "share", "new_tokens"))]
        assert all(float(number) > 0 for number in numbers if number)


def test_table_is_aligned_markdown(tiny):
    head, blank, *table = output("bench", "-m", tiny, *QUICK, "-d", "0,7").decode().splitlines()
    assert head.startswith(f"{tiny}: ") and " kernels, float products; loaded in " in head and blank == ""
    assert len(table) == 2 + 4
    assert len({len(line) for line in table}) == 1  # of one width
    assert len({line.count("|") for line in table}) == 1
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table]
    assert [row[:4] for row in cells[2:]] == [
        ["prefill 4", "0", "1", "1"], ["prefill 4", "7", "1", "1"], ["decode 3", "0", "1", "1"], ["decode 3", "7", "1", "1"]]


def test_requests_have_a_table_of_their_own(tiny):
    requests = ("-R", "1,2", *REQUESTS[-4:])
    lines = output("bench", "-m", tiny, *QUICK, *requests).decode().split("\n\n")
    assert [part.count("\n") for part in lines] == [0, 3, 4]
    table = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2].splitlines()]
    assert table[0][:6] == ["test", "requests", "threads", "tokens/s", "min to max", "decode tokens/s"]
    assert [row[:3] for row in table[2:]] == [["6+5", "1", "1"], ["6+5", "2", "1"]]
    assert len({len(line) for line in lines[2].splitlines()}) == 1
    alone = output("bench", "-m", tiny, *REQUESTS, *requests).decode().split("\n\n")
    assert [part.count("\n") for part in alone] == [0, 4]


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
    (["-R", -1], ["requests is -1"]),
    (["-R", "1,,2"], ["--requests", '""']),
    (["--request-prompt", 0], ["request_prompt is 0"]),
    (["--request-new", 0], ["request_new is 0"]),
    (["-R", 1, "--request-prompt", 60, "--request-new", 5], ["prompt of 60", "5 new tokens", str(CONTEXT)]),
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


def test_more_requests_than_any_machine_holds_are_refused(tiny):
    message = error(1, "bench", "-m", tiny, *REQUESTS, "-R", 2**31 - 1)
    assert message == f"paged KV cache: {2**31 - 1} blocks are more than any machine holds"


def test_context_that_fits_exactly_is_measured(tiny):
    assert len(document("bench", "-m", tiny, *QUICK, "-p", 4, "-n", 4, "-d", CONTEXT - 4)["rows"]) == 2
    fits = ("-R", 2, "--request-prompt", CONTEXT - 4, "--request-new", 4)
    assert cases(document("bench", "-m", tiny, *REQUESTS, *fits)["rows"]) == [("requests", CONTEXT, 0, 2, 1)]
