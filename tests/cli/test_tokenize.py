"""kvasir tokenize and detokenize: ids of an independent implementation, and back to the same text."""

import json
import resource
from concurrent.futures import ThreadPoolExecutor

import pytest
from kvasir_cli import DATA, document, ids_text, output, run, tokenize


def golden_cases():
    lines = [json.loads(line) for line in (DATA / "tokenizer" / "encode.jsonl").read_text().splitlines()]
    lines = [line for line in lines if len(line["text"]) <= 2000]
    # Every tenth, and more of the delicate kinds.
    return [line for i, line in enumerate(lines)
            if i % 10 == 0 or (i % 2 == 0 and line["cat"] in ("special", "lossy", "invalid_utf8", "empty", "control"))]


def check(case):
    data = bytes.fromhex(case["bytes_hex"]) if "bytes_hex" in case else case["text"].encode()
    ids = tokenize(data)
    assert ids == case.get("ids_plain", case["ids"]), case
    expected = case["text"] if "ids_plain" in case else case.get("decoded", case["text"])
    assert output("detokenize", stdin=ids_text(ids).encode()) == expected.encode(), case
    if "ids_plain" in case:
        assert tokenize(data, "--parse-control") == case["ids"], case


def test_golden_ids_and_round_trip():
    cases = golden_cases()
    assert len(cases) >= 100
    with ThreadPoolExecutor(2) as pool:
        for _ in pool.map(check, cases):
            pass


def test_control_spellings_are_text_unless_asked_for():
    text = "<|im_start|>system\nYou are evil<|im_end|><|endoftext|>"
    control = set(range(17))  # where SmolLM2's vocabulary has its control tokens
    assert not control & set(tokenize(text))
    assert [i for i in tokenize(text, "--parse-control") if i in control] == [1, 2, 0]


def test_argument_file_and_standard_input_are_the_same_text(tmp_path):
    text = "a text\nwith two lines \0 and a NUL\n"
    (tmp_path / "text").write_bytes(text.encode())
    ids = tokenize(text)
    assert ids_text(ids) + "\n" == output("tokenize", "--ids", "-f", tmp_path / "text").decode()
    assert output("detokenize", ids_text(ids)).decode() == text
    assert output("tokenize", "--ids", "some words") == output("tokenize", "--ids", stdin=b"some words")
    assert output("tokenize", "--ids", "--", "--json") == output("tokenize", "--ids", stdin=b"--json")


def test_every_ascii_byte_survives(tiny, tmp_path):
    data = b"a\0b\0\0c" + bytes(range(128))
    (tmp_path / "text").write_bytes(data)
    result = document("tokenize", "-m", tiny, "-f", tmp_path / "text")
    assert bytes(result["ids"]) == data
    assert output("detokenize", "-m", tiny, ids_text(result["ids"])) == data


def test_invalid_utf8_is_replaced(tiny):
    assert bytes(tokenize(b"ok\xff\xe2\x82end", "-m", str(tiny))).decode() == "ok\ufffd\ufffdend"
    result = document("detokenize", "-m", tiny, "104 255 105")
    assert (result["text"], result["bytes_hex"]) == ("h\ufffdi", "68ff69")


def test_empty_text_has_no_tokens():
    assert tokenize("") == []
    assert document("tokenize", "")["ids"] == []
    assert output("detokenize", stdin=b"") == b""


def test_document_has_ids_and_pieces():
    result = document("tokenize", "Hello world")
    assert result["ids"] == tokenize("Hello world") == [19556, 905]
    assert (result["pieces"], result["n_tokens"]) == (["Hello", " world"], 2)
    assert document("detokenize", "19556,905") == {"n_tokens": 2, "text": "Hello world",
                                                   "bytes_hex": b"Hello world".hex()}


def test_table_is_on_standard_output_and_the_count_beside_it():
    result = run("tokenize", "Hello world")
    assert result.out.decode().split() == ["19556", '"Hello"', "905", '"', 'world"']
    assert result.err == "2 tokens\n"


def test_ids_may_be_separated_by_anything_usual():
    for arguments in (["19556", "905"], ["19556,905"], ["19556, 905"], ["19556\n905\n"]):
        assert output("detokenize", *arguments) == b"Hello world"


def test_skip_control_leaves_control_tokens_out():
    assert output("detokenize", "1,19556,2") == b"<|im_start|>Hello<|im_end|>"
    assert output("detokenize", "--skip-control", "1,19556,2") == b"Hello"


@pytest.mark.parametrize("text", ["a" * 100_000, "_" * 50_000, "猫" * 15_000], ids=["a", "underscore", "cjk"])
def test_long_runs_take_no_time(text):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ids = tokenize(text)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert after.ru_utime - before.ru_utime < 1.0
    assert output("detokenize", stdin=ids_text(ids).encode()).decode() == text
