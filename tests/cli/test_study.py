"""kvasir study: what is measured, and how it is told. Speeds themselves are not tested."""

import csv
import math
import os
import subprocess
import sys

import pytest
from kvasir_cli import ROOT, document, error, output
from tiny_gguf import CONTEXT

STUDIES = ("cache", "chunk", "arrival", "sharing", "speculation")
QUICK = {
    "cache": ("-b", "1,2", "-p", 100, "-n", "2,20"),
    "chunk": ("--chunk", "4,16", "-p", 24, "-u", 2, "-r", 1),
    "arrival": ("--rate", "80,160", "-p", 8, "-n", 3, "--seconds", 0.08, "--limit", 2),
    "sharing": ("-s", "2,3", "-p", 33, "--own", 3),
    "speculation": ("--repetitive", "ab" * 8, "--free", "ab", "-n", 12, "-r", 1),
}
PLOTTER = {"PYTHONPATH": str(ROOT / "python"), "KVASIR_PYTHON": sys.executable}


@pytest.fixture
def arguments(tiny, tiny_base, tiny_draft):
    """The shortest run of a study."""
    models = {"cache": (), "speculation": ("-m", tiny_base, "-t", 1, "--draft", tiny_draft)}
    return lambda name: ("study", name, *models.get(name, ("-m", tiny, "-t", 1)), *QUICK[name])


@pytest.fixture(scope="module")
def cache_report():
    return document("study", "cache", *QUICK["cache"])


def test_cache_has_a_row_for_each_length(cache_report):
    assert (cache_report["study"], cache_report["shape"]) == ("cache", "small")
    assert [cache_report[name] for name in ("n_layer", "d_model", "vocab_size")] == [4, 256, 4096]
    assert [(row["batch"], row["cached"], row["new"]) for row in cache_report["rows"]] == [
        (batch, cached, new) for batch in (1, 2) for cached in ("on", "off") for new in (2, 20)]
    curves = {(curve["batch"], curve["cached"]): curve for curve in cache_report["curves"]}
    for row in cache_report["rows"]:
        seconds = curves[row["batch"], row["cached"] == "on"]["seconds"]
        assert len(seconds) == 20 and seconds == sorted(seconds) and seconds[0] > 0
        assert row["seconds"] == seconds[row["new"] - 1]
        assert row["tokens_per_second"] == pytest.approx(row["batch"] * row["new"] / row["seconds"])
    read = cache_report["weight_bytes"] / cache_report["read_bytes_per_second"]
    assert cache_report["read_weights_seconds"] == pytest.approx(read)


def test_crossover_is_the_first_length_from_which_the_cache_is_faster(cache_report):
    curves, crossovers = cache_report["curves"], cache_report["crossovers"]
    assert [crossover["batch"] for crossover in crossovers] == [1, 2]
    for cached, uncached, crossover in zip(curves[::2], curves[1::2], crossovers, strict=True):
        difference = [slow - fast for fast, slow in zip(cached["seconds"], uncached["seconds"], strict=True)]
        faster = [seconds > abs(difference[0]) for seconds in difference]  # the first token costs both the same
        assert crossover["source"] == "measured" and crossover["new"] > 1
        assert all(faster[crossover["new"] - 1 :]) and not faster[crossover["new"] - 2]


def test_cache_leaves_out_what_its_budget_does_not_suffice_for():
    report = document("study", "cache", "--shape", "large", "-b", 2, "-n", "1,800", "--budget", 0.3)
    assert [report[name] for name in ("n_layer", "n_head", "n_kv_head", "d_model", "vocab_size")] == [8, 8, 2, 512, 4096]
    assert all(len(curve["seconds"]) < 800 for curve in report["curves"])
    assert 800 not in {row["new"] for row in report["rows"]}


def test_chunk_has_a_row_for_each_size(arguments):
    rows = document(*arguments("chunk"))["rows"]
    assert [row["chunk"] for row in rows] == [4, 16]
    for row in rows:
        assert 0 < row["stall_seconds"] < row["prefill_seconds"] + 1 and row["decode_seconds"] > 0


def test_arrivals_are_the_same_for_every_schedule(arguments):
    report = document(*arguments("arrival"), "--seed", 3)
    rows = report["rows"]
    assert [(row["rate"], row["schedule"]) for row in rows] == [
        (rate, schedule) for rate in (80, 160) for schedule in ("static", "continuous", "chunked")]
    for row in rows:
        assert row["arrived"] == row["finished"] > 0 and row["tokens"] == 3 * row["arrived"]
        assert row["tokens_per_second"] == pytest.approx(row["tokens"] / row["seconds"])
        for what in ("first_token", "inter_token"):
            assert 0 < row[f"{what}_p50_seconds"] <= row[f"{what}_p99_seconds"] < 2
    for rate in (80, 160):
        assert len({row["arrived"] for row in rows if row["rate"] == rate}) == 1


def test_arrivals_follow_the_seed(arguments):
    def arrived(seed):
        return [row["arrived"] for row in document(*arguments("arrival"), "--rate", 200, "--seed", seed)["rows"]]

    assert arrived(1) == arrived(1)
    assert len({tuple(arrived(seed)) for seed in range(4)}) > 1


def test_nobody_who_arrived_in_vain_is_left_out(arguments):
    """At the limit some still wait: they have no token, but a time that they waited."""
    for row in document(*arguments("arrival"), "--rate", 1e9, "--seconds", 1e-4, "--limit", 1e-9)["rows"]:
        assert row["arrived"] > 0 and row["finished"] == row["tokens"] == 0
        assert 0 < row["first_token_p50_seconds"] < row["first_token_p99_seconds"] <= row["seconds"]
        assert row["inter_token_p50_seconds"] is None


def test_no_run_is_longer_than_its_limit(arguments):
    long = ("-p", 40, "-n", 20, "--rate", 20000, "--seconds", 1, "--limit", 0.05)
    for row in document(*arguments("arrival"), *long)["rows"]:
        assert row["finished"] < row["arrived"] and row["tokens"] < 20 * row["arrived"]
        assert 0.05 <= row["seconds"] < 2


def test_nothing_is_told_of_requests_that_never_came(arguments):
    for row in document(*arguments("arrival"), "--rate", 0.001)["rows"]:
        assert row["arrived"] == row["tokens"] == 0
        assert row["first_token_p50_seconds"] is None and row["inter_token_p99_seconds"] is None


@pytest.mark.parametrize(("prompt", "own"), [(32, 8), (33, 3), (15, 1), (16, 1), (17, 15), (1, 1), (31, 17)])
def test_blocks_are_those_of_the_closed_form(tiny, prompt, own):
    report = document("study", "sharing", "-m", tiny, "-t", 1, "-s", "2,3,5", "-p", prompt, "--own", own)
    one_block = 2 * 1 * 16 * 2 * 16  # keys and values, one kv head, head_dim, f16, positions
    for row in report["rows"]:
        of_one, sequences = math.ceil((prompt + own) / 16), row["sequences"]
        assert row["unshared_blocks"] == sequences * of_one
        assert row["shared_blocks"] == sequences * of_one - (sequences - 1) * (prompt // 16)
        assert row["saved_bytes"] == (sequences - 1) * (prompt // 16) * one_block
        for kind in ("shared", "unshared"):
            median, most = (row[f"{kind}_first_token_{which}_seconds"] for which in ("median", "most"))
            assert 0 < median <= most < 5


def test_speculation_has_a_row_for_each_text_and_kind_of_guess(arguments, tiny_base, tiny_draft):
    report = document(*arguments("speculation"))
    assert report["draft_model"] == tiny_draft.name
    assert [(row["text"], row["guesses"]) for row in report["rows"]] == [
        (text, kind) for text in ("repetitive", "free") for kind in ("ngram", "draft")]
    for row in report["rows"]:
        assert row["tokens"] == 12 and 0 <= row["accepted"] <= row["drafted"]
        assert row["speedup"] == pytest.approx(row["tokens_per_second"] / row["plain_tokens_per_second"])
    assert all(row["drafted"] > 0 for row in report["rows"] if row["guesses"] == "draft")
    report = document("study", "speculation", "-m", tiny_base, *QUICK["speculation"])
    assert [row["guesses"] for row in report["rows"]] == ["ngram", "ngram"] and "draft_model" not in report


def test_speculation_speaks_to_a_model_with_a_template_as_a_user(tiny):
    report = document("study", "speculation", *QUICK["speculation"], "-r", 1, "-n", 5)
    assert len(report["rows"]) == 2
    assert "context has 64" in error(1, "study", "speculation", "-m", tiny, *QUICK["speculation"])


@pytest.mark.parametrize(("name", "kind"), [*zip(STUDIES, ("png", "svg", "png", "svg", "png"), strict=True)])
def test_csv_has_the_rows_of_the_json_and_a_figure_is_drawn(arguments, tmp_path, name, kind):
    path, figure = tmp_path / "rows.csv", tmp_path / f"figure.{kind}"
    report = document(*arguments(name), "--csv", path, "--plot", figure, env=PLOTTER)
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(report["rows"]) > 1
    for told, row in zip(rows, report["rows"], strict=True):
        assert list(told) == list(row)
        assert [cell if isinstance(value, str) else float(cell) for cell, value in zip(told.values(), row.values())] == [
            *row.values()]
    content = figure.read_bytes()
    assert content.startswith(b"\x89PNG" if kind == "png" else b"<?xml") and len(content) > 5000


@pytest.mark.parametrize("name", STUDIES)
def test_table_is_aligned(arguments, name):
    table, _, notes = output(*arguments(name)).decode().partition("\n\n")
    table = table.splitlines()
    assert len(table) > 3 and len({len(line) for line in table}) == 1
    assert len({line.count("|") for line in table}) == 1
    if name == "cache":
        assert "batch 1, cache off: " in notes and " term dominates there" in notes and "reading the weights" in notes


def test_plot_of_nothing_else_is_refused(tmp_path):
    (tmp_path / "other.json").write_text('{"study": "other", "rows": []}')
    process = subprocess.run([sys.executable, "-m", "kvasir.plots", tmp_path / "other.json", tmp_path / "out.png"],
                             env={**os.environ, **PLOTTER}, capture_output=True, text=True, timeout=60)
    assert process.returncode == 1 and "no drawing of the study 'other'" in process.stderr
    assert not (tmp_path / "out.png").exists()


@pytest.mark.parametrize(("environment", "words"), [
    ({"KVASIR_PYTHON": "/nonexistent/python"}, ["/nonexistent/python", "No such file"]),
    ({"KVASIR_PYTHON": "false"}, ["false -m kvasir.plots failed"]),
])
def test_plotter_that_cannot_run_is_told_before_anything_is_measured(tmp_path, environment, words):
    message = error(1, "study", "cache", "--plot", tmp_path / "a.png", env=environment)
    assert all(word in message for word in ["--plot: ", *words]), message


def test_plotter_without_the_package_is_told_before_anything_is_measured(tmp_path):
    python = tmp_path / "python"  # one that sees no packages, whether kvasir is installed here or not
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -I -S "$@"\n')
    python.chmod(0o755)
    message = error(1, "study", "cache", "--plot", tmp_path / "a.png", env={"KVASIR_PYTHON": str(python)})
    assert all(word in message for word in ["--plot: ", "kvasir.plots failed", "KVASIR_PYTHON"]), message


def test_csv_that_cannot_be_written_is_told_before_anything_is_measured(tmp_path):
    assert "rows.csv: cannot be written" in error(1, "study", "cache", "--csv", tmp_path / "none" / "rows.csv")


@pytest.mark.parametrize(("arguments", "words"), [
    (["study"], ["cache, chunk, arrival, sharing or speculation"]),
    (["study", "speed"], ["speed"]),
    (["study", "cache", "--shape", "huge"], ["--shape", "huge"]),
    (["study", "cache", "-b", 0], ["batch is 0"]),
    (["study", "cache", "-n", "3,0"], ["new is 0"]),
    (["study", "cache", "-p", 0], ["prompt is 0"]),
    (["study", "cache", "--budget", 0], ["budget is 0"]),
    (["study", "cache", "--budget", "nan"], ["budget is nan"]),
    (["study", "cache", "--plot", "figure.pdf"], ["figure.pdf", ".png or .svg"]),
    (["study", "chunk", "--chunk", 0], ["chunk is 0"]),
    (["study", "chunk", "-u", 0], ["users is 0"]),
    (["study", "chunk", "-r", 0], ["repetitions is 0"]),
    (["study", "arrival", "--rate", "1,0"], ["rate is 0"]),
    (["study", "arrival", "--rate", "inf"], ["rate is inf"]),
    (["study", "arrival", "--rate", "1e9"], ["rate is", "at most"]),
    (["study", "arrival", "--seconds", -1], ["seconds is -1"]),
    (["study", "arrival", "--limit", 0], ["limit is 0"]),
    (["study", "arrival", "--running", 0], ["running is 0"]),
    (["study", "sharing", "-s", 1], ["sequences is 1", "must be 2"]),
    (["study", "sharing", "-s", 300, "-p", 4, "--own", 4], ["sequences is 300", "vocabulary"]),
    (["study", "sharing", "--own", 0], ["own is 0"]),
    (["study", "speculation", "-n", 1], ["new is 1"]),
    (["study", "speculation", "-r", 0], ["repetitions is 0"]),
])
def test_what_cannot_be_is_refused(tiny, arguments, words):
    model = () if arguments[1:2] in (["cache"], ["speed"], []) else ("-m", tiny)
    message = error(2, *arguments, *model)
    assert all(word in message for word in words), message


@pytest.mark.parametrize("arguments", [
    ("chunk", "-p", CONTEXT),
    ("chunk", "-p", 8, "-u", 8, "--chunk", 1),
    ("arrival", "-p", CONTEXT - 3, "-n", 4),
    ("sharing", "-p", CONTEXT - 3, "--own", 2),
])
def test_what_does_not_fit_the_context_is_refused(tiny, arguments):
    message = error(1, "study", *arguments, "-m", tiny)
    assert str(CONTEXT) in message and "context" in message


def test_cache_refuses_more_than_its_shape_holds():
    assert "1000 prompt tokens and 25 new ones" in error(1, "study", "cache", "-p", 1000, "-n", 25)
