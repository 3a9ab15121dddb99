"""The lab's thirteen tests, under its names. Where the lab allows 1e-5 between two of our own paths, the bits must be
equal here."""

import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from kvasir import lab

PROBABILITIES = np.array([0.5, 0.25, 0.15, 0.06, 0.04], dtype=np.float32)
LOGITS = np.log(PROBABILITIES)
ORDERS = np.array([[3, 0, 4, 1, 2], [4, 3, 2, 1, 0]])  # the argmax stands at 1 and at 4


def kept(row):
    return np.isfinite(row).tolist()


def first(n):
    return [i < n for i in range(5)]


def random_ids(seed, shape, cfg):
    return np.random.default_rng(seed).integers(0, cfg.vocab_size, shape)


def frequencies(rows, **sampling):
    ids = lab.sample_next(np.tile(LOGITS, (rows, 1)), **sampling)
    return np.bincount(ids, minlength=5) / rows


def test_cache_update_writes_and_returns_prefix():
    cfg = lab.Config()
    cache = lab.KVCache(cfg, batch=3)
    random = np.random.default_rng(20)

    def numbers(t):
        return random.standard_normal((3, cfg.n_kv_head, t, cfg.head_dim)).astype(np.float32)

    early_k, early_v = [numbers(6) for _ in range(2)], [numbers(6) for _ in range(2)]
    for layer in range(2):
        k, v = cache.update(layer, early_k[layer], early_v[layer])
        assert np.array_equal(k, early_k[layer]) and np.array_equal(v, early_v[layer])
        assert cache.pos == 0
    cache.advance(6)

    late_k, late_v = numbers(2), numbers(2)
    k, v = cache.update(1, late_k, late_v)
    assert cache.pos == 6
    assert np.array_equal(k, np.concatenate([early_k[1], late_k], axis=2))
    assert np.array_equal(v, np.concatenate([early_v[1], late_v], axis=2))
    assert np.array_equal(cache.k[1, :, :, :8], k) and np.array_equal(cache.v[1, :, :, :8], v)
    assert not cache.k[0, :, :, 6:].any() and not cache.v[1, :, :, 8:].any()

    cache.advance(2)
    too_many = numbers(cfg.max_seq - 7)
    before = cache.k
    with pytest.raises(ValueError, match="65.*64"):
        cache.update(0, too_many, too_many)
    assert np.array_equal(cache.k, before)
    assert cache.update(0, too_many[:, :, 1:], too_many[:, :, 1:])[0].shape == (3, 2, 64, 16)


def test_cache_bytes_match_formula():
    assert lab.KVCache(lab.Config(), 3).nbytes() == 98_304
    for max_seq in (1, 15, 16, 17, 64, 1000):
        cfg = lab.Config(max_seq=max_seq, n_layer=3, n_kv_head=1)
        numbers = 2 * 3 * 5 * 1 * max_seq * 16
        for dtype, size in (("float32", 4), (np.float32, 4), (np.float16, 2), ("float16", 2), ("bfloat16", 2)):
            assert lab.KVCache(cfg, 5, dtype).nbytes() == numbers * size


def test_mask_offsets_by_cache_position():
    mask = lab.cache_attention_mask(t_new=2, pos=3)
    assert mask.dtype == np.bool_
    assert mask.tolist() == [[False, False, False, False, True], [False] * 5]
    assert np.array_equal(lab.cache_attention_mask(7, 0), np.triu(np.ones((7, 7), bool), 1))
    assert lab.cache_attention_mask(1, 11).tolist() == [[False] * 12]


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_incremental_logits_match_full_forward(batch):
    cfg = lab.Config()
    model = lab.TinyLM(cfg, seed=1)
    idx = random_ids(1, (batch, 20), cfg)
    full = model(idx)
    assert full.shape == (batch, 20, cfg.vocab_size) and full.dtype == np.float32
    cache = lab.KVCache(cfg, batch)
    parts = [model(idx[:, :8], cache)]
    assert cache.pos == 8
    parts += [model.forward(idx[:, t : t + 1], cache) for t in range(8, 20)]
    assert cache.pos == 20
    assert np.array_equal(np.concatenate(parts, axis=1), full)


def test_chunked_prefill_matches_single_prefill():
    cfg = lab.Config()
    model = lab.TinyLM(cfg, seed=2)
    idx = random_ids(2, (2, 17), cfg)
    whole = lab.KVCache(cfg, 2)
    full = model(idx, whole)
    for chunk in (1, 2, 5, 16):
        cache = lab.KVCache(cfg, 2)
        parts = [model(idx[:, begin : begin + chunk], cache) for begin in range(0, 17, chunk)]
        assert cache.pos == 17
        assert np.array_equal(np.concatenate(parts, axis=1), full)
        assert np.array_equal(cache.k, whole.k) and np.array_equal(cache.v, whole.v)


def test_top_k():
    assert kept(lab.top_k_filter(LOGITS, 2)) == first(2)
    row = np.array([0.5, 4.0, 1.5, -2.0, 1.5])
    assert lab.top_k_filter(row, 2).tolist() == [-np.inf, 4.0, 1.5, -np.inf, 1.5]
    for off in (None, 0, 5, 2**40):
        assert np.array_equal(lab.top_k_filter(row, off), row)


def test_top_p_keeps_the_token_that_crosses_the_threshold():
    for p, n in ((0.0, 1), (0.5, 1), (0.6, 2), (0.9, 3), (0.901, 4), (1.0, 5), (None, 5)):
        assert kept(lab.top_p_filter(LOGITS, p)) == first(n), p
        assert kept(lab.top_p_filter(np.log([0.5, 0.25, 0.15, 0.06, 0.04]), p)) == first(n), p


def test_top_p_works_on_unsorted_rows():
    rows = LOGITS[ORDERS]
    filtered = lab.top_p_filter(rows, 0.6)
    assert np.array_equal(np.isfinite(filtered), ORDERS < 2)
    assert np.array_equal(filtered[ORDERS < 2], rows[ORDERS < 2])
    assert np.array_equal(lab.top_p_filter(rows[:, None, None], 0.6), filtered[:, None, None])  # any shape (..., V)


def test_min_p():
    assert kept(lab.min_p_filter(LOGITS, 0.2)) == first(3)
    assert kept(lab.min_p_filter(np.full(40, -3.0), 1.0)) == [True] * 40
    for off in (None, 0.0):
        assert np.array_equal(lab.min_p_filter(LOGITS, off), LOGITS)
    # Filters compose: after top-k 2 the first token has 2/3, which is enough for top-p 0.65.
    assert kept(lab.top_p_filter(lab.top_k_filter(LOGITS, 2), 0.65)) == first(1)
    assert kept(lab.top_p_filter(LOGITS, 0.65)) == first(2)


def test_greedy_and_low_temperature():
    rows = LOGITS[ORDERS]
    assert lab.sample_next(rows, temperature=0).tolist() == [1, 4]
    assert lab.sample_next(rows, temperature=0, top_k=1, top_p=0.0, min_p=1.0).tolist() == [1, 4]
    assert lab.sample_next(np.zeros((2, 64), np.float32), temperature=0).tolist() == [0, 0]
    generator = lab.Generator(4)
    for temperature in [0.01] * 50 + [1e-30, 1e-45]:
        assert lab.sample_next(rows, temperature=temperature, generator=generator).tolist() == [1, 4]


def test_sampling_distribution_after_top_k():
    found = frequencies(20_000, top_k=2, generator=lab.Generator(0))
    assert np.abs(found - [2 / 3, 1 / 3, 0, 0, 0]).max() < 0.015
    assert found[2:].tolist() == [0, 0, 0]

    rows = np.tile(LOGITS, (64, 1))
    generator = lab.Generator(7)
    drawn = lab.sample_next(rows, generator=generator)
    assert np.array_equal(lab.sample_next(rows, generator=lab.Generator(7)), drawn)
    assert not np.array_equal(lab.sample_next(rows, generator=generator), drawn)  # it moves on
    assert not np.array_equal(lab.sample_next(rows, generator=lab.Generator(8)), drawn)
    assert not np.array_equal(lab.sample_next(rows), lab.sample_next(rows))  # the module's own moves on, too


def test_temperature_flattens():
    generator = lab.Generator(3)
    found = {}
    for temperature in (0.5, 1.0, 2.0):
        powers = PROBABILITIES.astype(np.float64) ** (1 / temperature)
        found[temperature] = frequencies(20_000, temperature=temperature, generator=generator)
        assert np.abs(found[temperature] - powers / powers.sum()).max() < 0.015
    assert found[0.5][0] > found[1.0][0] > found[2.0][0]
    # Temperature comes first: flattened by 2, the first token has less than half, so top-p 0.5 keeps a second one.
    flat = frequencies(2_000, temperature=2.0, top_p=0.5, generator=generator)
    assert flat[1] > 0.2 and flat[2:].tolist() == [0, 0, 0]


@pytest.mark.parametrize("batch", [1, 3])
def test_cached_generation_equals_uncached(batch):
    cfg = lab.Config()
    model = lab.TinyLM(cfg, seed=3)
    prompt = random_ids(3, (batch, 10), cfg)
    for sampling in ({"temperature": 0}, {"temperature": 0.8, "top_k": 30, "top_p": 0.9, "min_p": 0.01}):
        uncached = lab.generate(model, prompt, 20, use_cache=False, **sampling)
        assert uncached.shape == (batch, 30)
        assert np.array_equal(uncached[:, :10], prompt)
        for chunk in (None, 1, 4, 10, 99):
            assert np.array_equal(lab.generate(model, prompt, 20, prefill_chunk=chunk, **sampling), uncached)


# ---- More than the lab asks for


@pytest.mark.parametrize("style", ["neox", "interleaved"])
def test_layers_by_themselves_are_those_of_the_model(style):
    cfg = lab.Config(n_layer=3, rope_style=style)
    model = lab.TinyLM(cfg, seed=6)
    idx = random_ids(6, (2, 9), cfg)
    expected = lab.KVCache(cfg, 2)
    model(idx[:, :4], expected)
    model(idx[:, 4:], expected)

    cache = lab.KVCache(cfg, 2)
    blocks = [lab.Block(cfg, layer, seed=6) for layer in range(cfg.n_layer)]
    for part in (idx[:, :4], idx[:, 4:]):
        x = model.state_dict()["model.embed_tokens.weight"][part]
        for block in blocks:
            x = block(x, cache)
        cache.advance(part.shape[1])
    assert np.array_equal(cache.k, expected.k) and np.array_equal(cache.v, expected.v)


@pytest.mark.parametrize("dtype, bits", [("float16", 11), ("bfloat16", 8)])
def test_a_small_cache_rounds_and_keeps_the_bits_equal(dtype, bits):
    cfg = lab.Config()
    k = np.random.default_rng(8).standard_normal((1, 2, 6, 16)).astype(np.float32)
    stored = lab.KVCache(cfg, 1, dtype).update(0, k, k)[0]
    assert stored.dtype == np.float32
    assert 0 < np.abs(stored / k - 1).max() <= 2.0**-bits
    model = lab.TinyLM(cfg)
    idx = random_ids(8, (1, 12), cfg)
    whole = model(idx, lab.KVCache(cfg, 1, dtype))
    cache = lab.KVCache(cfg, 1, dtype)
    assert np.array_equal(np.concatenate([model(idx[:, t : t + 1], cache) for t in range(12)], axis=1), whole)
    assert not np.array_equal(whole, model(idx))


def test_weights_can_be_read_and_replaced():
    cfg = lab.Config()
    one, other = lab.TinyLM(cfg, seed=1), lab.TinyLM(cfg, seed=2)
    idx = random_ids(1, (1, 5), cfg)
    assert not np.array_equal(one(idx), other(idx))
    other.load_state_dict(one.state_dict())
    assert np.array_equal(one(idx), other(idx))
    one.state_dict()["lm_head.weight"][:] = 0  # a copy
    assert one.state_dict()["lm_head.weight"].any()
    tied = one.state_dict()
    del tied["lm_head.weight"]
    other.load_state_dict(tied)
    one.load_state_dict(tied | {"lm_head.weight": tied["model.embed_tokens.weight"]})
    assert np.array_equal(one(idx), other(idx))


def test_rows_of_a_batch_do_not_see_each_other():
    cfg = lab.Config()
    model = lab.TinyLM(cfg)
    idx = random_ids(4, (3, 11), cfg)
    assert np.array_equal(model(idx), np.concatenate([model(row[None]) for row in idx]))


def test_inputs_may_be_lists_and_views():
    cfg = lab.Config()
    model = lab.TinyLM(cfg)
    idx = random_ids(5, (6, 4), cfg)
    expected = model(np.ascontiguousarray(idx.T))
    assert np.array_equal(model(idx.T), expected)
    assert np.array_equal(model(idx.T.tolist()), expected)
    assert np.array_equal(model(idx.T.astype(np.uint8)), expected)
    rows = np.tile(LOGITS, (4, 2))[:, ::2]
    assert np.array_equal(lab.top_k_filter(rows, 2), lab.top_k_filter(rows.copy(), 2))


def test_empty_updates_and_zero_new_tokens():
    cfg = lab.Config()
    nothing = np.zeros((2, cfg.n_kv_head, 0, cfg.head_dim), np.float32)
    assert lab.KVCache(cfg, 2).update(0, nothing, nothing)[0].shape == nothing.shape
    assert lab.cache_attention_mask(0, 4).shape == (0, 4)
    assert lab.generate(lab.TinyLM(cfg), [[1, 2]], 0).tolist() == [[1, 2]]
    assert lab.generate(lab.TinyLM(cfg), np.zeros((1, 60), int), 4).shape == (1, 64)


def test_ctrl_c_ends_a_long_generation():
    model = lab.TinyLM(lab.Config(max_seq=8000))
    timer = threading.Timer(0.2, signal.raise_signal, [signal.SIGINT])  # handled by this, the main thread
    started = time.monotonic()
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        lab.generate(model, [[1]], 7000, use_cache=False)
    assert time.monotonic() - started < 3


def test_threads_may_share_a_model():
    cfg = lab.Config()
    model = lab.TinyLM(cfg)
    prompts = [random_ids(seed, (2, 9), cfg) for seed in range(4)]
    expected = [lab.generate(model, prompt, 30, temperature=0) for prompt in prompts]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda prompt: lab.generate(model, prompt, 30, temperature=0), prompts))
    assert all(np.array_equal(a, b) for a, b in zip(found, expected))
