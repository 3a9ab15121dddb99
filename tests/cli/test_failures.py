"""Failures: exit status 1 and one line that names file and field, soon and without taking memory."""

import functools
import os
import random
import struct
import subprocess

import pytest
import tiny_gguf
from kvasir_cli import BINARY, Result, error, run, the_error
from tiny_gguf import entry, file, integer, string, tensor, text, tiny_model, u32, u64

MODEL_COMMANDS = (["generate", "x"], ["logits", "x"], ["perplexity", "x y"], ["chat"], ["tokenize", "x"],
                  ["detokenize", "1"], ["inspect"], ["verify"])


def nested_arrays(depth):
    return entry("deep", tiny_gguf.ARRAY, (u32(tiny_gguf.ARRAY) + u64(1)) * depth + u32(tiny_gguf.UINT8) + u64(0))


def with_tensors(*tensors, data=bytes(256)):
    return file(tensors=tensors, data=data)


# Content, and the words that the message must have besides the file's name.
MALFORMED = {
    "empty": (b"", "header"),
    "4 bytes": (b"GGUF", "header"),
    "23 bytes": (file()[:23], "header"),
    "magic": (file(magic=b"GGML"), "GGUF"),
    "big endian": (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big endian"),
    "version 0": (file(version=0), "version 0"),
    "version 99": (file(version=99), "version 99"),
    "entries": (file(n_entries=2**64 - 1), "metadata count"),
    "tensors": (file(n_tensors=2**61), "tensor count"),
    "alignment 0": (file([integer("general.alignment", 0)]), "general.alignment"),
    "alignment 3": (file([integer("general.alignment", 3)]), "general.alignment"),
    "alignment -1": (file([entry("general.alignment", tiny_gguf.INT32, struct.pack("<i", -1))]), "general.alignment"),
    "alignment text": (file([text("general.alignment", "32")]), "general.alignment"),
    "string 2^64-1": (file([entry("name", tiny_gguf.STRING, u64(2**64 - 1) + bytes(64))]), "name"),
    "string 2^40": (file([entry("name", tiny_gguf.STRING, u64(2**40) + bytes(64))]), "name"),
    "array 2^61": (file([entry("list", tiny_gguf.ARRAY, u32(tiny_gguf.UINT64) + u64(2**61))]), "list"),
    "array in array": (file([nested_arrays(1000)]), "deep"),
    "value type": (file([entry("odd", 99, bytes(32))]), "odd"),
    "empty key": (file([text("", "value")]), "key is empty"),
    "key twice": (file([text("twice", "a"), text("twice", "b")]), "twice"),
    "bool 2": (file([entry("flag", tiny_gguf.BOOL, b"\2")]), "flag"),
    "dimension 0": (with_tensors(tensor("w", [8, 0], 0)), "tensor 'w'"),
    "5 dimensions": (with_tensors(tensor("w", [1] * 5, 0)), "tensor 'w'"),
    "2^32 x 2^32": (with_tensors(tensor("w", [2**32, 2**32], 0)), "tensor 'w'"),
    "2^62 floats": (with_tensors(tensor("w", [2**62], 0)), "tensor 'w'"),
    "tensor type": (with_tensors(tensor("w", [8], 0, tensor_type=200)), "type 200"),
    "tensor twice": (with_tensors(tensor("w", [8], 0), tensor("w", [8], 32)), "tensor 'w'"),
    "overlap": (with_tensors(tensor("v", [16], 0), tensor("w", [8], 32)), "overlaps"),
    "offset": (with_tensors(tensor("w", [8], 2**64 - 32)), "tensor 'w'"),
    "unaligned": (with_tensors(tensor("w", [8], 4)), "offset 4"),
    "cut off": (tiny_model()[:-40], "cut off"),
}

# Well-formed files that hold no model that can be run: what generate says.
NO_MODEL = {
    "nothing": (file(), "general.architecture"),
    "architecture": (file([text("general.architecture", "mamba")]), "mamba"),
    "no width": (file([text("general.architecture", "llama"), integer("llama.context_length", 8),
                       integer("llama.block_count", 1)]), "llama.embedding_length"),
    "sliding window": (tiny_model(extra=[integer("llama.attention.sliding_window", 8)]), "sliding_window"),
    "heads": (tiny_model(extra=[integer("llama.attention.key_length", 15)]), "head"),
    "missing tensor": (tiny_model().replace(b"blk.0.ffn_up", b"blk.0.ffn_xx"), "blk.0.ffn_up.weight"),
    "tokenizer": (tiny_model().replace(b"gpt2", b"bert"), "bert"),
    "splitting rule": (tiny_model().replace(b"gpt-2", b"gpt-9"), "gpt-9"),
    "token types": (tiny_model(extra=[integer("tokenizer.ggml.eot_token_id", 258)]), "eot_token_id"),
}


def measured(*arguments):
    """A run with its CPU seconds and its largest resident memory in MiB."""
    process = subprocess.Popen([BINARY, *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE)
    with process.stdout, process.stderr:
        out, err = process.stdout.read(), process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return Result(process.returncode, out, err.decode()), usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


@functools.cache
def nothing_done():
    """CPU seconds and MiB of a run that reads no file: with sanitizers the program is a large one."""
    return measured("--version")[1:]


def check_refused(path, words, *arguments):
    least_seconds, least_mebibytes = nothing_done()
    for _ in range(3):  # other programs make single runs slow at times
        result, seconds, mebibytes = measured(*arguments, "-m", path)
        message = the_error(result, 1)
        assert str(path) in message and words in message
        assert mebibytes < least_mebibytes + 32
        if seconds < least_seconds + 0.1:
            return
    assert seconds < least_seconds + 0.1


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_file_is_one_line(tmp_path, name):
    content, words = MALFORMED[name]
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    for command in (["inspect"], ["generate", "x"]):
        check_refused(path, words, *command)


@pytest.mark.parametrize("name", NO_MODEL)
def test_file_without_a_usable_model_is_one_line(tmp_path, name):
    content, words = NO_MODEL[name]
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    check_refused(path, words, "generate", "x")
    assert run("inspect", "-m", path).status == 0


def test_file_cut_off_anywhere_is_one_line(tmp_path):
    whole = tiny_model()
    path = tmp_path / "model.gguf"
    for size in [*range(0, 600, 37), *range(600, len(whole) - 1, 2311)]:
        path.write_bytes(whole[:size])
        check_refused(path, "", "generate", "x")


def test_flipped_bytes_end_in_a_line_or_a_result(tmp_path):
    whole = tiny_model()
    head = len(whole) - 64128  # the weights may be anything
    path = tmp_path / "model.gguf"
    rng = random.Random(16)
    statuses = set()
    for _ in range(60):
        content = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            content[rng.randrange(head)] = rng.randrange(256)
        path.write_bytes(content)
        result, _, _ = measured("generate", "-m", path, "x", "-n", "1")
        statuses.add(result.status)
        if result.status != 0:
            assert str(path) in the_error(result, 1), bytes(content[:head])
    assert statuses == {0, 1}


@pytest.mark.parametrize("options", [
    {"alignment": 64}, {"reverse_tensors": True},
    {"extra": [text(f"unknown.{i}", "value") for i in range(20_000)]},
], ids=lambda options: next(iter(options)))
def test_unusual_but_legal_file_gives_the_same_numbers(tiny, tmp_path, options):
    path = tmp_path / "model.gguf"
    path.write_bytes(tiny_model(**options))
    hashes = {run("logits", "-m", m, "--sha256", "some text").out for m in (tiny, path)}
    assert len(hashes) == 1 and len(hashes.pop()) == 65


@pytest.mark.parametrize("command", MODEL_COMMANDS, ids=lambda command: command[0])
def test_missing_model_is_named(tmp_path, command):
    path = tmp_path / "nowhere.gguf"
    check_refused(path, "No such file", *command)


def test_missing_default_model_tells_the_mend(tmp_path):
    message = error(1, "inspect", env={"KVASIR_MODEL": "", "XDG_DATA_HOME": str(tmp_path)})
    assert str(tmp_path) in message and "script/bootstrap" in message
    named = tmp_path / "named.gguf"
    assert str(named) in error(1, "inspect", env={"KVASIR_MODEL": str(named)})


@pytest.mark.parametrize("command", ["generate", "logits", "perplexity", "tokenize"])
def test_text_file_that_cannot_be_read_is_named(tiny, tmp_path, command):
    assert str(tmp_path / "nowhere") in error(1, command, "-m", tiny, "-f", tmp_path / "nowhere")
    assert str(tmp_path) in error(1, command, "-m", tiny, "-f", tmp_path)  # a folder


WRITERS = [["generate", "x"], ["generate", "x", "--json"], ["logits", "x"], ["perplexity", "x y"],
           ["tokenize", "x"], ["tokenize", "x", "--ids"], ["detokenize", "65"], ["inspect"],
           ["inspect", "--json"], ["chat", "--system", "x"], ["verify", "--quick"], ["verify", "--quick", "--json"]]


@pytest.mark.parametrize("command", WRITERS, ids=" ".join)
def test_full_disk_is_an_error(tiny, command):
    with open("/dev/full", "wb") as full:
        result = run(command[0], "-m", tiny, *command[1:], stdin=b"Hello\n", stdout=full)
    assert "standard output" in the_error(result, 1)


@pytest.mark.parametrize("command", WRITERS, ids=" ".join)
def test_closed_pipe_is_an_error(tiny, command):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as pipe:
        result = run(command[0], "-m", tiny, *command[1:], stdin=b"Hello\n", stdout=pipe)
    assert "standard output" in the_error(result, 1)


def test_help_on_a_full_disk_is_an_error():
    with open("/dev/full", "wb") as full:
        assert "standard output" in the_error(run("--help", stdout=full), 1)


def test_closed_standard_output_is_an_error(tiny):
    process = subprocess.run(["sh", "-c", 'exec "$0" generate -m "$1" x >&-', BINARY, tiny], capture_output=True)
    assert "standard output" in the_error(Result(process.returncode, process.stdout, process.stderr.decode()), 1)
