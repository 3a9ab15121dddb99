"""kvasir inspect: what is in a model file."""

import struct

import tiny_gguf
from kvasir_cli import document, output
from tiny_gguf import entry, string, u32, u64, values


def test_summary_of_the_real_model():
    text = output("inspect").decode()
    for words in ("GGUF version 3", "layers 30, width 576", "heads 9 over 3 of 64 dims", "vocabulary 49152",
                  "byte-level BPE \"smollm\"", "eos 2 \"<|im_end|>\"", "Q4_1   210 tensors",
                  "tokenizer.ggml.tokens = [49152 values]", "chat template\n{% for message in messages %}"):
        assert words in text, words


def test_document_has_every_value_and_tensor():
    result = document("inspect")
    metadata = result["metadata"]
    assert metadata["general.architecture"] == "llama"
    assert metadata["llama.attention.layer_norm_rms_epsilon"] == 1e-5
    assert len(metadata["tokenizer.ggml.tokens"]) == len(metadata["tokenizer.ggml.token_type"]) == 49152
    assert metadata["tokenizer.ggml.tokens"][:3] == ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    assert len(metadata["tokenizer.ggml.merges"]) > 40000
    assert "<|im_start|>" in metadata["tokenizer.chat_template"]
    assert len(result["tensors"]) == 272
    (embedding,) = [t for t in result["tensors"] if t["name"] == "token_embd.weight"]
    assert embedding == {"name": "token_embd.weight", "type": "Q8_0", "shape": [49152, 576],
                         "bytes": 49152 * 576 // 32 * 34}


def test_every_kind_of_value(tmp_path):
    nested = u32(tiny_gguf.INT8) + u64(2) + b"\xff\x01"
    extra = [
        entry("x.u8", tiny_gguf.UINT8, b"\xff"),
        entry("x.i8", tiny_gguf.INT8, b"\xff"),
        entry("x.i16", tiny_gguf.INT16, struct.pack("<h", -300)),
        entry("x.u64", tiny_gguf.UINT64, u64(2**64 - 1)),
        entry("x.i64", tiny_gguf.INT64, struct.pack("<q", -(2**63))),
        entry("x.f32", tiny_gguf.FLOAT32, struct.pack("<f", 0.1)),
        entry("x.f64", tiny_gguf.FLOAT64, struct.pack("<d", 0.1)),
        entry("x.inf", tiny_gguf.FLOAT32, struct.pack("<f", float("inf"))),
        entry("x.bool", tiny_gguf.BOOL, b"\1"),
        entry("x.text", tiny_gguf.STRING, string('two\nlines "quoted" ' + "é" * 50)),
        values("x.bools", tiny_gguf.BOOL, [b"\1", b"\0"]),
        values("x.u64s", tiny_gguf.UINT64, [u64(2**64 - 1), u64(0)]),
        values("x.floats", tiny_gguf.FLOAT64, [struct.pack("<d", 0.5)]),
        values("x.texts", tiny_gguf.STRING, [string("a"), string(""), string("é")]),
        values("x.nested", tiny_gguf.ARRAY, [nested, nested]),
        values("x.none", tiny_gguf.STRING, []),
    ]
    path = tmp_path / "values.gguf"
    path.write_bytes(tiny_gguf.tiny_model(extra=extra))
    metadata = document("inspect", "-m", path)["metadata"]
    assert {key: value for key, value in metadata.items() if key.startswith("x.")} == {
        "x.u8": 255, "x.i8": -1, "x.i16": -300, "x.u64": 2**64 - 1, "x.i64": -(2**63), "x.f32": 0.1, "x.f64": 0.1,
        "x.inf": None, "x.bool": True, "x.text": 'two\nlines "quoted" ' + "é" * 50, "x.bools": [True, False],
        "x.u64s": [2**64 - 1, 0], "x.floats": [0.5], "x.texts": ["a", "", "é"], "x.nested": [[-1, 1], [-1, 1]],
        "x.none": [],
    }
    text = output("inspect", "-m", path).decode()
    assert "  x.nested = [2 values]\n" in text and "  x.u64 = 18446744073709551615\n" in text
    assert '  x.text = "two\\nlines \\"quoted\\" ' in text


def test_tensors_are_listed_when_asked_for(tiny):
    text = output("inspect", "-m", tiny, "--tensors").decode()
    assert "  blk.0.attn_q.weight              F32   [32, 32]\n" in text
    assert "blk.0.attn_q.weight" not in output("inspect", "-m", tiny).decode()


def test_strange_but_well_formed_file_is_described(tmp_path):
    path = tmp_path / "strange.gguf"
    path.write_bytes(tiny_gguf.file([tiny_gguf.text("general.architecture", "mystery")]))
    text = output("inspect", "-m", path).decode()
    assert 'architecture "mystery" is not supported' in text
    assert "no chat template" in text
    assert document("inspect", "-m", path)["metadata"] == {"general.architecture": "mystery"}
