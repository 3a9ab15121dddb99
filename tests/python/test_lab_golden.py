"""kvasir.lab against independent implementations (tests/data/lab)."""

import numpy as np
import pytest
from golden import DATA, read_json
from safetensors.numpy import load_file

from kvasir import lab

MODELS = {model["name"]: model for model in read_json("lab/models.json")["models"]}
FILTERS = read_json("lab/filters.json")
ROWS = {name: np.array([float(x) for x in row], dtype=np.float32) for name, row in FILTERS["rows"].items()}
FILTER_FUNCTIONS = {"top_k": lab.top_k_filter, "top_p": lab.top_p_filter, "min_p": lab.min_p_filter}
LOGIT_TOLERANCE = 2e-5


def load(name, pairing="neox"):
    cfg = lab.Config(**(MODELS[name]["config"] | {"rope_style": pairing}))
    state = load_file(DATA / f"lab/{name}.safetensors")
    if pairing == "interleaved":  # the same model with its query and key rows in the other order
        state |= load_file(DATA / f"lab/{name}.qk_interleaved.safetensors")
    model = lab.TinyLM(cfg)
    model.load_state_dict(state)
    return model, state, load_file(DATA / f"lab/{name}.golden.safetensors")


@pytest.mark.parametrize("pairing", ["neox", "interleaved"])
@pytest.mark.parametrize("name", MODELS)
def test_logits_are_those_of_the_float64_model(name, pairing):
    model, _, golden = load(name, pairing)
    logits = model(MODELS[name]["sequence"])
    assert np.abs(logits - golden["logits_f64"]).max() < LOGIT_TOLERANCE


@pytest.mark.parametrize("name", MODELS)
def test_the_pairing_matters(name):
    model, state, golden = load(name)
    wrong = lab.TinyLM(lab.Config(**(MODELS[name]["config"] | {"rope_style": "interleaved"})))
    wrong.load_state_dict(state)
    logits = wrong(MODELS[name]["sequence"])
    assert np.abs(logits - golden["logits_wrong_pairing_f32"]).max() < LOGIT_TOLERANCE
    assert np.abs(logits - golden["logits_f64"]).max() > 0.01


@pytest.mark.parametrize("name", MODELS)
def test_blocks_and_norm_give_the_hidden_states(name):
    model, state, golden = load(name)
    hidden = golden["hidden_f64"]  # (n_layer + 2, B, T, d_model): embedding, after each block, after the norm
    x = state["model.embed_tokens.weight"][np.array(MODELS[name]["sequence"])]
    cache = lab.KVCache(model.cfg, 2)
    for layer in range(model.cfg.n_layer):
        assert np.abs(x - hidden[layer]).max() < LOGIT_TOLERANCE
        prefix = f"model.layers.{layer}."
        weights = {n.removeprefix(prefix): w for n, w in state.items() if n.startswith(prefix)}
        block = lab.Block(model.cfg, layer)
        block.load_state_dict(weights)
        attention = lab.Attention(model.cfg, layer)
        attention.load_state_dict({n.removeprefix("self_attn."): w for n, w in weights.items() if "self_attn" in n})
        norm = lab.RMSNorm(model.cfg.d_model, model.cfg.rms_eps)
        norm.weight = weights["input_layernorm.weight"]
        after = block(x)
        assert np.array_equal(block(x[:, :5], cache), after[:, :5])
        assert np.array_equal(attention(norm(x[:, :5]), cache), attention(norm(x))[:, :5])
        x = after
    assert cache.pos == 0
    norm = lab.RMSNorm(model.cfg.d_model, model.cfg.rms_eps)
    norm.weight[:] = state["model.norm.weight"]
    assert np.abs(norm(x) - hidden[-1]).max() < LOGIT_TOLERANCE


@pytest.mark.parametrize("name", MODELS)
def test_the_cache_holds_rotated_keys_and_values(name):
    model, _, golden = load(name)
    prompt = MODELS[name]["prompt"]
    cache = lab.KVCache(model.cfg, 2)
    model(prompt, cache)
    n = len(prompt[0])
    for ours, theirs in ((cache.k, golden["cache_k_f32"]), (cache.v, golden["cache_v_f32"])):
        assert np.abs(ours[:, :, :, :n] - theirs).max() < LOGIT_TOLERANCE
        assert not ours[:, :, :, n:].any()
    assert lab.KVCache(model.cfg, 3).nbytes() == MODELS[name]["cache_bytes_batch3_f32"]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("path", [{}, {"use_cache": False}, {"prefill_chunk": 3}, {"prefill_chunk": 5}])
def test_greedy_generation_is_the_same(name, path):
    model, _, _ = load(name)
    prompt, greedy = MODELS[name]["prompt"], MODELS[name]["greedy"]
    ids = lab.generate(model, prompt, len(greedy[0]), temperature=0, **path)
    assert ids.tolist() == [p + g for p, g in zip(prompt, greedy)]


@pytest.mark.parametrize("mask", read_json("lab/masks.json")["masks"], ids=lambda m: f"{m['t_new']}+{m['pos']}")
def test_masks(mask):
    expected = [[cell == "1" for cell in row] for row in mask["rows"]]
    assert lab.cache_attention_mask(mask["t_new"], mask["pos"]).tolist() == expected


@pytest.mark.parametrize("case", read_json("lab/rope.json")["rope"], ids=lambda c: c["name"])
@pytest.mark.parametrize("style", ["neox", "interleaved"])
def test_rope(case, style):
    golden = load_file(DATA / "lab/rope.safetensors")
    x = golden[f"{case['name']}.x_f32"]
    rotated = lab._rope(np.stack([x, -x])[None], case["positions"], case["theta"], style)
    expected = golden[f"{case['name']}.{style}_f64"]
    assert np.abs(rotated[0] - np.stack([expected, -expected])).max() < 1e-6


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", FILTER_FUNCTIONS)
def test_filters_keep_exactly_the_same_tokens(name, dtype):
    cases = [case for case in FILTERS["filters"] if case["f"] == name]
    assert len(cases) > 50
    for case in cases:
        row = ROWS[case["row"]].astype(dtype)
        expected = np.full_like(row, -np.inf)
        expected[case["kept"]] = row[case["kept"]]
        before = row.copy()
        filtered = FILTER_FUNCTIONS[name](row, case["value"])
        assert filtered.dtype == dtype
        assert np.array_equal(filtered, expected), case
        assert np.array_equal(row, before)


@pytest.mark.parametrize("case", FILTERS["compositions"], ids=lambda c: "-".join(str(v) for v in c.values() if not isinstance(v, list)))
def test_compositions(case):
    row = ROWS[case["row"]].astype(np.float64) / case["temperature"]
    for name in ("top_k", "top_p", "min_p"):
        row = FILTER_FUNCTIONS[name](row, case.get(name))
    weights = np.exp(row - row.max())
    assert np.abs(weights / weights.sum() - case["probs"]).max() < 1e-9
    rows = np.tile(ROWS[case["row"]], (300, 1))
    options = {name: case.get(name) for name in ("top_k", "top_p", "min_p")}
    drawn = lab.sample_next(rows, case["temperature"], **options, generator=lab.Generator(1))
    assert (np.array(case["probs"])[drawn] > 0).all()
