"""What cannot be used as given is refused in words, and nothing has changed afterwards."""

import os
import subprocess
import sys

import numpy as np
import pytest

import kvasir
from kvasir import lab

CFG = lab.Config()
TINY = lab.TinyLM(CFG)
IDX = np.zeros((2, 4), dtype=np.int64)
X = np.zeros((2, 4, 64), dtype=np.float32)
K = np.zeros((2, 2, 4, 16), dtype=np.float32)
ROW = np.zeros(5, dtype=np.float32)
ROWS = np.zeros((2, 5), dtype=np.float32)


def cache(batch=2, **changes):
    return lab.KVCache(lab.Config(**changes), batch)


def filled(batch=2, pos=62):
    result = cache(batch)
    result.advance(pos)
    return result


def with_token(token):
    idx = IDX.copy()
    idx[1, 2] = token
    return idx


REFUSED = {
    # Config
    "n_layer 0": (lambda: cache(n_layer=0), "n_layer"),
    "n_head that is no multiple": (lambda: cache(n_head=3), "n_head 3"),
    "odd head_dim": (lambda: cache(d_model=60), "head_dim 15"),
    "max_seq as float": (lambda: cache(max_seq=64.0), "max_seq is 64.0"),
    "max_seq beyond 32 bits": (lambda: cache(max_seq=2**31), "max_seq"),
    "negative theta": (lambda: cache(rope_theta=-1.0), "rope_theta"),
    "theta as text": (lambda: cache(rope_theta="1"), "rope_theta"),
    "unknown rope_style": (lambda: lab.TinyLM(lab.Config(rope_style="norm")), "neox"),
    "cfg of another kind": (lambda: lab.KVCache({"max_seq": 3}, 1), "Config"),
    # Cache
    "batch 0": (lambda: cache(0), "batch"),
    "unknown dtype": (lambda: lab.KVCache(CFG, 1, "int8"), "int8.*float32"),
    "dtype of no kind": (lambda: lab.KVCache(CFG, 1, "nonsense"), "nonsense"),
    "dtype float64": (lambda: lab.KVCache(CFG, 1, np.float64), "float64.*float32"),
    "layer beyond the last": (lambda: cache().update(2, K, K), "layer is 2"),
    "negative layer": (lambda: cache().update(-1, K, K), "layer is -1"),
    "keys of another rank": (lambda: cache().update(0, K[0], K[0]), r"k_new must have shape \(2, 2, T, 16\)"),
    "keys of another batch": (lambda: cache(3).update(0, K, K), r"\(3, 2, T, 16\), has \(2, 2, 4, 16\)"),
    "values of another length": (lambda: cache().update(0, K, K[:, :, :3]), "v_new"),
    "integer keys": (lambda: cache().update(0, K.astype(np.int64), K), "int64.*astype"),
    "cache overflow": (lambda: filled().update(0, K, K), "66.*64"),
    "advance beyond the end": (lambda: filled().advance(3), "65.*64"),
    "advance backwards": (lambda: filled().advance(-1), "t is -1"),
    "mask of negative t_new": (lambda: lab.cache_attention_mask(-1, 0), "t_new -1"),
    "mask at negative pos": (lambda: lab.cache_attention_mask(1, -2), "pos -2"),
    "mask of float": (lambda: lab.cache_attention_mask(1.0, 2), "t_new is 1.0"),
    # Layers
    "rope of odd heads": (lambda: lab._rope(np.zeros((1, 1, 2, 5), np.float32), [0, 1]), "head_dim is 5"),
    "rope at negative position": (lambda: lab._rope(K, [0, 1, -1, 2]), "positions holds -1"),
    "rope at half a position": (lambda: lab._rope(K, [0.5, 1, 2, 3]), "integers"),
    "rope at too few positions": (lambda: lab._rope(K, [0, 1, 2]), r"positions must have shape \(4,\)"),
    "rope with theta 0": (lambda: lab._rope(K, [0, 1, 2, 3], theta=0), "theta"),
    "rope without rows": (lambda: lab._rope(np.zeros((1, 1, 0, 16), np.float32), []), "0 positions"),
    "norm of another width": (lambda: lab.RMSNorm(8)(X), r"\(..., 8\)"),
    "norm of integers": (lambda: lab.RMSNorm(64)(X.astype(np.int64)), "int64"),
    "attention of another width": (lambda: lab.Attention(CFG, 0)(X[:, :, :32]), r"\(B, T, 64\)"),
    "attention without tokens": (lambda: lab.Attention(CFG, 0)(X[:, :0]), "0 numbers"),
    "attention beyond the cache": (lambda: lab.Attention(CFG, 0)(X, filled()), "66.*64"),
    "block beyond max_seq": (lambda: lab.Block(CFG, 0)(np.zeros((1, 65, 64), np.float32)), "65.*64"),
    "block with a cache for another batch": (lambda: lab.Block(CFG, 1)(X, cache(3)), "batch of 2.*3"),
    "layer that there is not": (lambda: lab.Block(CFG, 2), "layer is 2"),
    "missing weight": (lambda: lab.Attention(CFG, 0).load_state_dict({}), "q_proj.weight is missing"),
    "superfluous weight": (lambda: TINY.load_state_dict(TINY.state_dict() | {"bias": ROW}), "bias"),
    "weight of another shape": (
        lambda: TINY.load_state_dict(TINY.state_dict() | {"model.norm.weight": ROW}),
        r"model.norm.weight has shape \[5\]",
    ),
    "integer weight": (
        lambda: TINY.load_state_dict(TINY.state_dict() | {"model.norm.weight": np.ones(64, np.int64)}),
        "model.norm.weight.*int64",
    ),
    # Model
    "float ids": (lambda: TINY(IDX.astype(np.float32)), "integers, holds float32"),
    "bool ids": (lambda: TINY(IDX.astype(bool)), "integers, holds bool"),
    "ids of one sequence without its batch": (lambda: TINY(IDX[0]), r"\(B, T\)"),
    "no ids": (lambda: TINY(IDX[:, :0]), "0 ids"),
    "no sequences": (lambda: TINY(IDX[:0]), "0 ids"),
    "id at the vocabulary's size": (lambda: TINY(with_token(128)), "idx holds 128"),
    "negative id": (lambda: TINY(with_token(-1)), "idx holds -1"),
    "id that 32 bits would wrap": (lambda: TINY(with_token(2**32)), "idx holds 4294967296"),
    "id that 64 bits would wrap": (lambda: TINY(np.array([[2**64 - 1]], np.uint64)), "idx holds 18446744073709551615"),
    "more tokens than max_seq": (lambda: TINY(np.zeros((1, 65), int)), "65.*64"),
    "more tokens than the cache has left": (lambda: TINY(IDX, filled()), "66.*64"),
    "cache for another batch": (lambda: TINY(IDX, cache(1)), "batch of 2.*1"),
    "cache for another model": (lambda: TINY(IDX, cache(n_kv_head=4)), "another shape"),
    "something else as cache": (lambda: TINY(IDX, {}), "KVCache"),
    "negative seed": (lambda: lab.TinyLM(CFG, seed=-1), "seed is -1"),
    # Sampling
    "filter of integers": (lambda: lab.top_k_filter(np.arange(5), 2), "float32 or float64, is int64"),
    "filter of a number": (lambda: lab.top_k_filter(np.float32(1), 2), r"\(..., V\)"),
    "filter of no vocabulary": (lambda: lab.top_p_filter(ROW[:0], 0.5), r"\(..., V\)"),
    "fractional k": (lambda: lab.top_k_filter(ROW, 2.0), "k is 2.0"),
    "p as text": (lambda: lab.top_p_filter(ROW, "0.5"), "p is '0.5'"),
    "p not a number": (lambda: lab.top_p_filter(ROW, float("nan")), "p is NaN"),
    "min_p as bool": (lambda: lab.min_p_filter(ROW, True), "min_p is True"),
    "negative temperature": (lambda: lab.sample_next(ROWS, temperature=-1.0), "temperature"),
    "infinite temperature": (lambda: lab.sample_next(ROWS, temperature=float("inf")), "temperature"),
    "temperature as text": (lambda: lab.sample_next(ROWS, temperature="0.7"), "temperature is '0.7'"),
    "negative top_k": (lambda: lab.sample_next(ROWS, top_k=-2), "top_k"),
    "top_p above 1": (lambda: lab.sample_next(ROWS, top_p=1.5), "top_p"),
    "negative top_p": (lambda: lab.sample_next(ROWS, top_p=-0.1), "top_p"),
    "min_p above 1": (lambda: lab.sample_next(ROWS, min_p=2), "min_p"),
    "one row without its batch": (lambda: lab.sample_next(ROW), r"\(B, V\)"),
    "no rows": (lambda: lab.sample_next(ROWS[:0]), "0 rows"),
    "a seed as generator": (lambda: lab.sample_next(ROWS, generator=3), "Generator"),
    # Generation
    "more new tokens than fit": (lambda: lab.generate(TINY, IDX, 61), "4 prompt tokens and 61 .*64"),
    "negative max_new_tokens": (lambda: lab.generate(TINY, IDX, -1), "max_new_tokens is -1"),
    "negative prefill_chunk": (lambda: lab.generate(TINY, IDX, 1, prefill_chunk=-1), "prefill_chunk is -1"),
    "empty prompt": (lambda: lab.generate(TINY, IDX[:, :0], 3), "0 tokens"),
    "empty batch": (lambda: lab.generate(TINY, IDX[:0], 3), "batch is 0"),
    "float prompt": (lambda: lab.generate(TINY, IDX * 1.0, 3), "integers, holds float64"),
    "prompt of one sequence without its batch": (lambda: lab.generate(TINY, IDX[0], 3), r"\(B, P\)"),
    "generation of no model": (lambda: lab.generate(None, IDX, 3), "TinyLM"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_is_refused(name):
    call, message = REFUSED[name]
    with pytest.raises(ValueError, match=message) as refusal:
        call()
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("row", [[np.nan, 1.0], [np.inf, 1.0], [-np.inf, -np.inf]])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_row_without_a_distribution_is_a_runtime_error(row, temperature):
    with pytest.raises(RuntimeError):
        lab.sample_next(np.array([row], np.float32), temperature=temperature)


def test_a_refused_call_changes_nothing():
    used = cache()
    TINY(IDX, used)
    before, logits = used.k, TINY(IDX)
    for bad in (with_token(500), np.zeros((2, 61), int)):
        with pytest.raises(ValueError):
            TINY(bad, used)
    with pytest.raises(ValueError):
        TINY.load_state_dict({})
    assert used.pos == 4
    assert np.array_equal(used.k, before) and np.array_equal(TINY(IDX), logits)


def test_a_missing_file_is_an_os_error(tmp_path):
    with pytest.raises(OSError, match="nowhere.gguf"):
        kvasir.Model(tmp_path / "nowhere.gguf")


def test_a_file_that_is_no_model_is_a_value_error(tmp_path):
    for name, content in (("empty.gguf", b""), ("text.gguf", b"not a model" * 100), ("cut.gguf", b"GGUF\x03\0\0\0")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=name):
            kvasir.Model(tmp_path / name)


def test_a_missing_default_model_says_what_to_do(tmp_path):
    environment = {k: v for k, v in os.environ.items() if k != "KVASIR_MODEL"} | {"XDG_DATA_HOME": str(tmp_path)}
    code = "import kvasir\ntry: kvasir.Model()\nexcept OSError as error: print(error)"
    told = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert str(tmp_path) in told.stdout and "KVASIR_MODEL" in told.stdout


@pytest.mark.parametrize(
    "options",
    [{"threads": -1}, {"threads": 10_000}, {"threads": 1.5}, {"activations": "f16"}, {"kv_type": "q8"}, {"kv_type": 16}],
)
def test_bad_options_of_a_model_are_refused(options, model):
    with pytest.raises(ValueError, match=next(iter(options))):
        kvasir.Model(model.path, **options)


def test_float64_activations_are_rounded_to_float32():
    random = np.random.default_rng(6)
    k = random.standard_normal(K.shape)
    rounded = cache().update(0, k.astype(np.float32), K)[0]
    assert np.array_equal(cache().update(0, k, K)[0], rounded) and rounded.dtype == np.float32
    x = random.standard_normal(X.shape)
    assert np.array_equal(lab.Attention(CFG, 0)(x), lab.Attention(CFG, 0)(x.astype(np.float32)))
