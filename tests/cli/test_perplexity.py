"""kvasir perplexity: the golden likelihood of a text."""

import array
import math
import statistics

import pytest
from kvasir_cli import DATA, F32, document, error, ids_text, output, read_safetensors

TEXT = DATA / "smollm2" / "ppl_text.txt"


def test_golden_likelihood_with_float32_throughout(golden):
    ids = golden["perplexity"][0]["ids"][:300]  # enough for this precision
    _, _, data = read_safetensors(DATA / "smollm2" / "logits_top50.safetensors")["ppl.harbour.nll_f64"]
    expected = array.array("d", data)[: len(ids) - 1]
    result = document("perplexity", "--tokens", ids_text(ids), *F32)
    assert (result["tokens"], result["predicted"]) == (300, 299)
    assert result["mean_nll"] == pytest.approx(statistics.fmean(expected), abs=1e-5)
    assert result["standard_error"] == pytest.approx(statistics.stdev(expected) / math.sqrt(299), rel=1e-3)
    assert result["perplexity"] == pytest.approx(math.exp(result["mean_nll"]), rel=1e-12)


def test_default_arithmetic_stays_near_the_golden_likelihood(golden):
    (expected,) = golden["perplexity"]
    result = document("perplexity", "-f", TEXT)
    assert (result["tokens"], result["predicted"]) == (expected["tokens"], expected["predicted"])
    assert result["mean_nll"] == pytest.approx(expected["mean_nll_f64"], abs=0.02)
    assert 0.05 < result["standard_error"] < 0.15
    assert len(result["fingerprint"]) >= 8


def test_line_for_people_has_the_same_numbers(tiny):
    options = ("perplexity", "-m", tiny, "a few words")
    result = document(*options)
    line = output(*options).decode()
    assert line.count("\n") == 1 and line.startswith("10 tokens predicted")
    assert f"{result['mean_nll']:.6f}" in line and f"{result['standard_error']:.6f}" in line


def test_numbers_do_not_depend_on_the_path(tiny):
    options = ("perplexity", "-m", tiny, "a few words")
    expected = document(*options)
    for path in (["--no-cache"], ["--prefill-chunk", 1], ["--prefill-chunk", 4], ["--threads", 2]):
        assert document(*options, *path) == expected, path


def test_longer_texts_are_cut_into_windows(tiny):
    result = document("perplexity", "-m", tiny, "x" * 200)
    assert (result["window"], result["tokens"], result["predicted"]) == (64, 200, 196)
    result = document("perplexity", "-m", tiny, "x" * 200, "--window", 50)
    assert (result["window"], result["predicted"]) == (50, 196)


def test_one_token_predicts_nothing(tiny):
    assert "two tokens" in error(2, "perplexity", "-m", tiny, "x")
