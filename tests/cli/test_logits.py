"""kvasir logits: one hash for one text on every path, and the numbers behind it."""

import array
import hashlib

from kvasir_cli import document, error, output, read_safetensors, tokenize

PROMPT = "The capital of France is the city of"
VOCAB = 49152


def sha256(*options, **more):
    line = output("logits", "--sha256", PROMPT, *options, **more).decode()
    assert line.endswith("\n") and len(line) == 65
    return line.strip()


def test_hash_is_the_same_on_every_path():
    expected = sha256()
    for path in (["--prefill-chunk", 1], ["--prefill-chunk", 3], ["--prefill-chunk", 7], ["--prefill-chunk", 0],
                 ["--threads", 1], ["--threads", 3], ["--no-cache"]):
        assert sha256(*path) == expected, path
    assert sha256(env={"KVASIR_ISA": "scalar"}) == expected


def test_hash_depends_on_numbers_and_text():
    hashes = {sha256(), sha256("--activations", "f32"), sha256("--kv-type", "f32"), sha256("--kv-type", "bf16")}
    hashes.add(output("logits", "--sha256", PROMPT + " ").decode().strip())
    assert len(hashes) == 5


def test_float_activations_come_with_a_float_cache():
    exact = sha256("--activations", "f32")
    assert sha256("--activations", "f32", "--kv-type", "f32") == exact
    assert sha256("--activations", "f32", "--kv-type", "f16") != exact
    assert sha256("--kv-type", "f16") == sha256()


def test_file_holds_the_hashed_numbers(tmp_path):
    path = tmp_path / "logits.safetensors"
    result = document("logits", PROMPT, "--out", path, "--sha256", "--top", 3)
    ids = tokenize(PROMPT)
    assert (result["ids"], result["n_tokens"], result["vocab_size"]) == (ids, len(ids), VOCAB)
    tensors = read_safetensors(path)
    assert set(tensors) == {"logits", "tokens"}
    dtype, shape, data = tensors["logits"]
    assert (dtype, shape) == ("F32", [len(ids), VOCAB])
    assert hashlib.sha256(data).hexdigest() == result["sha256"] == sha256()
    assert tensors["tokens"][:2] == ("I32", [len(ids)])
    assert array.array("i", tensors["tokens"][2]).tolist() == ids

    logits = array.array("f", data)
    for position, top in enumerate(result["top"]):
        row = logits[position * VOCAB : (position + 1) * VOCAB]
        best = sorted(range(VOCAB), key=lambda i: (-row[i], i))[:3]
        assert [entry["id"] for entry in top] == best
        assert array.array("f", [entry["logit"] for entry in top]) == array.array("f", [row[i] for i in best])


def test_table_shows_the_largest_of_each_position():
    lines = output("logits", PROMPT, "--top", 2).decode().splitlines()
    result = document("logits", PROMPT, "--top", 2)
    assert len(lines) == len(tokenize(PROMPT))
    for position, line in enumerate(lines):
        assert line.split()[:2] == [str(position), str(result["ids"][position])]
        assert f" {result['top'][position][0]['id']} " in line


def test_golden_best_token_of_the_last_position(golden):
    for prompt in golden["prompts"][:3]:
        result = document("logits", "--tokens", ",".join(map(str, prompt["ids"])), "--top", 1)
        assert result["top"][-1][0]["id"] == prompt["last_top20_ids"][0]


def test_more_tokens_than_the_context_are_refused_with_both_numbers(tiny):
    message = error(1, "logits", "-m", tiny, "x" * 65)
    assert "65" in message and "64" in message


def test_file_that_cannot_be_written_is_named(tiny, tmp_path):
    path = tmp_path / "no folder" / "logits.safetensors"
    assert str(path) in error(1, "logits", "-m", tiny, "x", "--out", path)
    assert "/dev/full" in error(1, "logits", "-m", tiny, "x", "--out", "/dev/full")
