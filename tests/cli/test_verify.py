"""kvasir verify: every path held against the slow one, a flipped bit noticed, and a receipt that machines compare."""

import hashlib
import json
import os
import pty
import struct
import subprocess

import pytest
import tiny_gguf
from kvasir_cli import BINARY, document, error, ids_text, output, run

EVERY_TYPE = {  # kernel: the operation that its flipped bit is first seen at
    "linear": "ffn down projection",
    "rms_norm": "ffn norm",
    "swiglu": "ffn activation",
    "add": "residual after ffn",
    "rope": "query",
    "store_kv": "attention",
    "attention": "attention",
    "combine_spans": "attention",
}


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Paths of tiny models of three layers, by the type of their matrices."""
    folder = tmp_path_factory.mktemp("verify")
    for name, options in tiny_gguf.MODELS.items():
        (folder / name).write_bytes(tiny_gguf.tiny_model(layers=3, **options))
    return {name: folder / name for name in tiny_gguf.MODELS}


def flipped(kernel, *options):
    """The document of a run in which one bit of one kernel is wrong."""
    result = run("verify", "--quick", "--json", "--flip-bit", kernel, *options)
    assert (result.status, result.err) == (1, ""), result
    return json.loads(result.out)


@pytest.mark.parametrize("name", tiny_gguf.MODELS)
def test_every_path_of_every_weight_type_is_equal(models, name):
    result = document("verify", "-m", models[name])
    assert (result["equal"], result["differing"]) == (True, 0)
    assert all(run["equal"] and run["logits"] == run["positions"] * tiny_gguf.VOCAB for run in result["runs"])
    assert {run["kernels"] for run in result["runs"]} == set(result["receipt"]["kernels"].split())
    assert {run["threads"] for run in result["runs"]} >= {1, 2, 3}
    assert {"uncached, every step", "token by token", "batch, joined at any time"} <= {r["path"] for r in result["runs"]}


@pytest.mark.parametrize(("name", "kernel", "operation"), [
    *[("Q4_0", kernel, operation) for kernel, operation in EVERY_TYPE.items()],
    *[(name, "linear", EVERY_TYPE["linear"]) for name in tiny_gguf.MODELS],
    *[(name, "quantize", "ffn activation") for name in ("Q8_0", "Q4_0", "Q4_K")],
    ("BF16", "round_bf16", "ffn activation"),
])
def test_flipped_bit_is_noticed_and_named(models, name, kernel, operation):
    result = flipped(kernel, "-m", models[name])
    assert not result["equal"] and result["differing"] > 0
    fastest = result["receipt"]["kernels"].split()[-1]
    places = set()
    for one in result["runs"]:
        assert one["equal"] == (one["kernels"] != fastest)
        if not one["equal"]:
            places.add(tuple(one["first_difference"][key] for key in ("layer", "operation", "prompt", "position")))
    assert places == {(1, operation, 1, 3)}  # the middle layer, the last position of the first prompt
    first = next(run for run in result["runs"] if not run["equal"])["first_difference"]
    assert 1 <= first["different"] <= first["values"] and 0 < first["largest"] < 0.01


def test_flipped_bit_is_told_to_people(models):
    result = run("verify", "-m", models["Q4_0"], "--quick", "--flip-bit", "swiglu")
    text = result.out.decode()
    assert (result.status, result.err) == (1, "")
    assert "DIFFERENT: " in text and "EQUAL" not in text and "logits_sha256: " in text
    (line,) = [line for line in text.splitlines() if line.startswith("first difference")]
    assert line.startswith("first difference: layer 1, position 3, operation ffn activation: 1 of 64 values, largest ")
    assert "another difference" not in text


def test_flip_bit_is_hidden_and_its_kernels_are_known(tiny):
    assert "flip" not in output("verify", "--help").decode()
    assert "softmax" in error(2, "verify", "-m", tiny, "--flip-bit", "softmax")


def test_table_and_receipt_are_those_of_the_document(models):
    options = ("verify", "-m", models["Q8_0"], "--quick", "--threads", 2)
    result = document(*options)
    text = output(*options).decode()
    table, slow_path, verdict, receipt = text.split("\n\n")
    assert verdict == f"EQUAL: all {len(result['runs'])} runs gave the bits of the slow path."
    assert slow_path.startswith("slow path: no cache, scalar kernels, 1 thread\n")
    assert [line.split(": ", 1) for line in receipt.splitlines()] == [list(item) for item in result["receipt"].items()]
    header, *rows = table.splitlines()
    assert header.split() == ["path", "kernels", "threads", "values", "compared", "result"]
    assert all(row.endswith("  equal") for row in rows) and max(map(len, rows)) <= 80
    values = sum(int(row.split()[-2]) for row in rows)
    assert values == sum(run["logits"] + run["intermediates"] for run in result["runs"])


def test_receipt(models):
    path = models["Q4_K"]
    receipt = document("verify", "-m", path, "--quick")["receipt"]
    assert receipt["kvasir"] in output("--version").decode()
    assert receipt["arithmetic"] == "1"
    assert receipt["model"] == "Q4_K"  # not its folder, which is the machine's
    assert receipt["model_sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    assert receipt["kernels"].split()[0] == "scalar"
    assert (receipt["kv_type"], receipt["activations"]) == ("f16", "default")
    assert all(receipt[key] for key in ("revision", "compiler", "build", "processor", "threads", "prompts"))
    assert not any("/" in value for value in receipt.values())
    for key in ("prompts_sha256", "logits_sha256"):
        assert len(receipt[key]) == 64


def test_hashes_can_be_had_in_other_ways(models):
    result = document("verify", "-m", models["Q4_0"], "--quick")
    prompts, hashes = hashlib.sha256(), hashlib.sha256()
    for prompt in result["prompts"]:
        ids = prompt["ids"]
        logits = output("logits", "-m", models["Q4_0"], "--tokens", ids_text(ids), "--sha256", "--no-cache")
        assert logits.decode().strip() == prompt["logits_sha256"]
        prompts.update(struct.pack(f"<{1 + len(ids)}i", len(ids), *ids))
        hashes.update(prompt["logits_sha256"].encode())
    assert prompts.hexdigest() == result["receipt"]["prompts_sha256"]
    assert hashes.hexdigest() == result["receipt"]["logits_sha256"]


def test_hash_of_the_logits_depends_on_the_numbers_and_nothing_else(models):
    def logits_sha256(*options, **environment):
        return document("verify", "--quick", "-m", *options, env=environment)["receipt"]["logits_sha256"]

    expected = logits_sha256(models["Q4_0"])
    assert logits_sha256(models["Q4_0"], "--threads", 5) == expected
    assert logits_sha256(models["Q4_0"], KVASIR_ISA="scalar") == expected
    others = [(models["Q4_0"], "--kv-type", "f32"), (models["Q4_0"], "--activations", "f32"), (models["Q8_0"],)]
    assert len({expected, *(logits_sha256(*options) for options in others)}) == 4


def test_prompts_from_a_file(models, tmp_path):
    path = tmp_path / "prompts"
    path.write_bytes(b"one prompt\n\nanother, longer than the first one\r\nsh\xc3\xb6rt\n")
    result = document("verify", "-m", models["F32"], "--quick", "-f", path)
    assert result["equal"]
    lines = ["one prompt", "another, longer than the first one", "shört"]
    tokens = [[int(i) for i in output("tokenize", "-m", models["F32"], "--ids", line).decode().split(",")]
              for line in lines]
    assert [prompt["ids"] for prompt in result["prompts"]] == tokens
    assert [prompt["slow_path"] for prompt in result["prompts"]] == ["one run", "one run", "every step"]
    assert result["receipt"]["prompts"] == f"3, of {sum(map(len, tokens))} tokens together"


def test_one_long_prompt_is_enough(models, tmp_path):
    path = tmp_path / "prompts"
    path.write_text("a prompt that is longer than the short ones")
    result = document("verify", "-m", models["F32"], "--quick", "-f", path)
    (only,) = {run["positions"] for run in result["runs"] if run["path"] == "batch of whole prompts"}
    assert only == 2 * 43  # a batch of one would be none


BROKEN = {
    "NaN": (struct.pack("<f", float("nan")), 1, "not finite"),
    "infinity": (struct.pack("<f", float("inf")), 1, "not finite"),
    "zeros": (bytes(4), 64128 // 4, "all logits are equal"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_model_that_agrees_on_nonsense_fails(tmp_path, name):
    value, count, words = BROKEN[name]
    path = tmp_path / "model.gguf"
    path.write_bytes(tiny_gguf.tiny_model()[: -4 * count] + value * count)  # the weights are the end of the file
    for options in ([], ["--quick"], ["--json"]):
        message = error(1, "verify", "-m", path, *options)
        assert words in message and "prompt" in message


def test_prompts_that_cannot_be_verified_with(tiny, tmp_path):
    path = tmp_path / "prompts"
    for text, status, words in (("", 2, "no prompt"), ("\n\r\n\n", 2, "no prompt"), ("abc", 1, "too few"),
                                ("ab\n" + "x" * 65, 1, "prompt 2 has 65 tokens, the model's context 64")):
        path.write_bytes(text.encode())
        assert words in error(status, "verify", "-m", tiny, "-f", path)
    assert "nowhere" in error(1, "verify", "-m", tiny, "-f", tmp_path / "nowhere")


def test_smollm2_quickly():
    result = document("verify", "--quick")
    assert result["equal"]
    assert result["receipt"]["model_sha256"] == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
    assert result["receipt"]["logits_sha256"] == "ce70dc6ebf6c28e2b4017451203a91865ab2ce8b14b70258757f160ee8066d2c"


def test_progress_is_a_line_on_a_terminal_that_is_gone_at_the_end(models):
    ours, theirs = pty.openpty()
    process = subprocess.run([BINARY, "verify", "-m", models["F32"], "--quick"], stdout=subprocess.PIPE,
                             stderr=theirs, timeout=120)
    os.close(theirs)
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert process.returncode == 0 and process.stdout.count(b"\n") > 10
    assert "slow path: " in shown and "1 runs compared" in shown
    assert shown.endswith("\r\x1b[K")
