"""The lab "KV cache and sampling" by its own names, on the engine's own layers, cache and sampler.

Arrays are numpy arrays: float32 for activations (float64 is rounded to it), integers for token ids. B is the batch, T the
tokens of a call, V the vocabulary, hd the size of a head. What does not fit is a ValueError; nothing is cut.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from . import _arrays, _kvasir

__all__ = [
    "Attention",
    "Block",
    "Config",
    "Generator",
    "KVCache",
    "RMSNorm",
    "TinyLM",
    "cache_attention_mask",
    "generate",
    "min_p_filter",
    "sample_next",
    "top_k_filter",
    "top_p_filter",
]

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]


@dataclasses.dataclass
class Config:
    """The shape of a small Llama-style decoder."""

    vocab_size: int = 128
    max_seq: int = 64  # positions: prompt and new tokens together
    n_layer: int = 2
    n_head: int = 4  # query heads
    n_kv_head: int = 2  # key/value heads; n_head is a multiple of it
    d_model: int = 64
    d_ff: int = 176
    rope_theta: float = 10000.0
    rms_eps: float = 1e-5
    rope_style: str = "neox"  # pairs (i, i + hd/2); "interleaved": pairs (2i, 2i + 1)

    @property
    def head_dim(self) -> int:
        return self.d_model // self.n_head


def _rope_pairing(style: str) -> _kvasir.RopePairing:
    pairings = {"neox": _kvasir.RopePairing.neox, "interleaved": _kvasir.RopePairing.interleaved}
    if style not in pairings:
        raise ValueError(f'rope_style is {style!r}, must be "neox" or "interleaved"')
    return pairings[style]


def _native(cfg: Config) -> _kvasir.Config:
    """The C++ config; ValueError naming the first field that cannot be."""
    if not isinstance(cfg, Config):
        raise ValueError(f"cfg is a {type(cfg).__name__}, must be a kvasir.lab.Config")
    names = ("vocab_size", "max_seq", "n_layer", "n_head", "n_kv_head", "d_model", "d_ff")
    sizes = {name: _arrays.integer(name, getattr(cfg, name), 1, _arrays.INT32_MAX) for name in names}
    return _kvasir.make_config(
        **sizes,
        head_dim=cfg.head_dim,
        rope_theta=_arrays.number("rope_theta", cfg.rope_theta),
        rms_eps=_arrays.number("rms_eps", cfg.rms_eps),
        pairing=_rope_pairing(cfg.rope_style),
    )


# ---- Cache


def _kv_type(dtype: Any) -> _kvasir.KvType:
    types = {"float32": _kvasir.KvType.f32, "float16": _kvasir.KvType.f16, "bfloat16": _kvasir.KvType.bf16}
    try:
        name = dtype if isinstance(dtype, str) and dtype in types else np.dtype(dtype).name
    except TypeError:
        name = ""
    if name not in types:
        raise ValueError(f"KV cache: dtype is {dtype!r}, must be float32, float16 or bfloat16")
    return types[name]


class KVCache:
    """Keys and values of `batch` sequences, preallocated for `cfg.max_seq` positions in every layer.

    Keys are stored after RoPE. With dtype "float16" or "bfloat16" numbers are rounded when written; they are always
    read as float32.
    """

    def __init__(self, cfg: Config, batch: int, dtype: Any = "float32") -> None:
        config = _native(cfg)
        batch = _arrays.integer("batch", batch, 1, _arrays.INT32_MAX)
        self._cache = _kvasir.KvCache(config, batch, _kv_type(dtype))
        self._shape = (cfg.n_layer, batch, cfg.n_kv_head, cfg.max_seq, cfg.head_dim)

    def update(self, layer: int, k_new: ArrayLike, v_new: ArrayLike) -> tuple[Floats, Floats]:
        """Writes k_new and v_new, (B, H_kv, T, hd), at positions [pos, pos + T) of one layer.

        Returns copies of that layer's keys and values [0, pos + T). Does not advance pos: every layer writes at the
        same one. ValueError if pos + T exceeds max_seq; nothing is written then.
        """
        _, batch, heads, _, head_dim = self._shape
        layer = _arrays.integer("layer", layer, 0, self._shape[0] - 1)
        k = _arrays.floats("k_new", k_new, (batch, heads, "T", head_dim))
        v = _arrays.floats("v_new", v_new, k.shape)
        return self._cache.update(layer, k, v)

    def advance(self, t: int) -> None:
        """Adds t positions: called once a forward, after the last layer. ValueError beyond max_seq or below 0."""
        self._cache.advance(_arrays.integer("t", t, 0))

    def nbytes(self) -> int:
        """Bytes of keys and values: 2 * n_layer * B * H_kv * max_seq * hd * bytes of the dtype."""
        return self._cache.nbytes

    @property
    def pos(self) -> int:
        """Positions written so far."""
        return self._cache.pos

    @property
    def max_seq(self) -> int:
        return self._cache.max_seq

    @property
    def k(self) -> Floats:
        """A copy of all keys, (n_layer, B, H_kv, max_seq, hd); zero where nothing has been written."""
        return self._read(0)

    @property
    def v(self) -> Floats:
        """A copy of all values, (n_layer, B, H_kv, max_seq, hd)."""
        return self._read(1)

    def _read(self, which: int) -> Floats:
        layers = [self._cache.read_layer(layer)[which] for layer in range(self._shape[0])]
        return np.concatenate(layers).reshape(self._shape)


def _native_cache(cache: KVCache | None) -> _kvasir.KvCache | None:
    if cache is not None and not isinstance(cache, KVCache):
        raise ValueError(f"cache is a {type(cache).__name__}, must be a kvasir.lab.KVCache or None")
    return None if cache is None else cache._cache


def cache_attention_mask(t_new: int, pos: int) -> NDArray[np.bool_]:
    """(t_new, pos + t_new), True where attention is NOT allowed: query i sees key j if and only if j <= pos + i."""
    return _kvasir.cache_attention_mask(_arrays.integer("t_new", t_new), _arrays.integer("pos", pos))


# ---- Layers


def _rope(x: ArrayLike, positions: ArrayLike, theta: float = 10000.0, style: str = "neox") -> Floats:
    """Rotates x, (..., T, hd), to its absolute positions, (T,)."""
    rows = _arrays.floats("x", x)
    if rows.ndim < 2:
        raise ValueError(f"x must have shape (..., T, head_dim), has {rows.shape}")
    places = _arrays.integers("positions", positions, ("T",), _arrays.INT32_MAX)
    if places.shape != rows.shape[-2:-1]:
        raise ValueError(f"positions must have shape ({rows.shape[-2]},), has {places.shape}")
    theta = _arrays.number("theta", theta)
    return _kvasir.rope(rows, places, rows.shape[-1], theta, _rope_pairing(style)).reshape(rows.shape)


class RMSNorm:
    """x / sqrt(mean(x^2) + eps) * weight over the last axis. `weight`, (d,), may be changed or replaced."""

    def __init__(self, d: int, eps: float = 1e-5) -> None:
        self.weight: Floats = np.ones(_arrays.integer("d", d, 1), dtype=np.float32)
        self.eps = _arrays.number("eps", eps)

    def __call__(self, x: ArrayLike) -> Floats:
        """x: (..., d), float32."""
        weight = _arrays.floats("weight", self.weight, ("d",))
        rows = _arrays.floats("x", x)
        if rows.shape[-1:] != weight.shape:
            raise ValueError(f"x must have shape (..., {weight.size}), has {rows.shape}")
        return _kvasir.rms_norm(rows, weight, self.eps).reshape(rows.shape)


class _Weighted:
    """Something made of weights under Hugging Face names."""

    def __init__(self, make: Callable[[dict[str, Floats]], Any], weights: Mapping[str, ArrayLike]) -> None:
        self._make = make
        self.load_state_dict(weights)

    def state_dict(self) -> dict[str, Floats]:
        """Copies of the weights by name; linear layers as (out, in)."""
        return {name: weight.copy() for name, weight in self._weights.items()}

    def load_state_dict(self, state: Mapping[str, ArrayLike]) -> None:
        """Replaces all weights. ValueError naming the first that is missing, superfluous, of another shape or not
        of floats; nothing changes then."""
        weights = {name: _arrays.floats(name, weight).copy() for name, weight in state.items()}
        self._layer = self._make(weights)
        self._weights = weights


def _random_weights(cfg: Config, seed: int, prefix: str) -> dict[str, Floats]:
    state = _kvasir.random_weights(_native(cfg), _arrays.integer("seed", seed, 0, 2**64 - 1))
    return {name.removeprefix(prefix): weight for name, weight in state.items() if name.startswith(prefix)}


class _Layer(_Weighted):
    def __init__(self, native: Any, prefix: str, cfg: Config, layer: int, seed: int) -> None:
        config = _native(cfg)
        self.cfg = dataclasses.replace(cfg)
        self.layer = _arrays.integer("layer", layer, 0, cfg.n_layer - 1)
        super().__init__(lambda weights: native(config, self.layer, weights), _random_weights(cfg, seed, prefix))

    def __call__(self, x: ArrayLike, cache: KVCache | None = None) -> Floats:
        """x: (B, T, d_model), float32, at the cache's pos (without a cache: 0). Returns the same shape. Writes the keys
        and values of its layer into the cache and does not advance it."""
        rows = _arrays.floats("x", x, ("B", "T", self.cfg.d_model))
        out: Floats = self._layer.forward(rows, _native_cache(cache))
        return out

    forward = __call__


class Attention(_Layer):
    """Grouped-query attention of one layer; weights as in TinyLM(cfg, seed)."""

    def __init__(self, cfg: Config, layer: int, seed: int = 0) -> None:
        super().__init__(_kvasir.Attention, f"model.layers.{layer}.self_attn.", cfg, layer, seed)


class Block(_Layer):
    """x += attention(norm(x)); x += mlp(norm(x)). Weights as in TinyLM(cfg, seed)."""

    def __init__(self, cfg: Config, layer: int, seed: int = 0) -> None:
        super().__init__(_kvasir.Block, f"model.layers.{layer}.", cfg, layer, seed)


class TinyLM(_Weighted):
    """A small decoder with random weights."""

    def __init__(self, cfg: Config, seed: int = 0) -> None:
        config = _native(cfg)
        self.cfg = dataclasses.replace(cfg)
        super().__init__(lambda weights: _kvasir.TinyLM(config, weights), _random_weights(cfg, seed, ""))

    def __call__(self, idx: ArrayLike, cache: KVCache | None = None) -> Floats:
        """Logits (B, T, V) of the token ids idx, (B, T).

        With a cache, the tokens stand at its pos, which advances by T. ValueError if they do not fit.
        """
        ids = _arrays.token_ids("idx", idx, ("B", "T"), self.cfg.vocab_size)
        logits: Floats = self._layer.forward(ids, _native_cache(cache))
        return logits

    forward = __call__


# ---- Sampling


class Generator:
    """The source of a sampler's randomness: a seed, and a position that moves on with every row drawn."""

    def __init__(self, seed: int = 0) -> None:
        self._generator = _kvasir.Generator(_arrays.integer("seed", seed, 0, 2**64 - 1))

    @property
    def seed(self) -> int:
        return self._generator.seed


_default_generator = Generator(0)


def _native_generator(generator: Generator | None) -> _kvasir.Generator | None:
    if generator is not None and not isinstance(generator, Generator):
        raise ValueError(f"generator is a {type(generator).__name__}, must be a kvasir.lab.Generator or None")
    return None if generator is None else generator._generator


def _filter(native: Callable[[NDArray[np.float64], float], None], logits: ArrayLike, threshold: float) -> NDArray[Any]:
    given = _arrays.array("logits", logits, ("float32", "float64"))
    if given.ndim < 1 or given.shape[-1] < 1:
        raise ValueError(f"logits must have shape (..., V), have {given.shape}")
    rows = np.array(given, dtype=np.float64).reshape(-1, given.shape[-1])
    native(rows, threshold)
    return rows.reshape(given.shape).astype(given.dtype)  # exact: kept values are those that were given


def top_k_filter(logits: ArrayLike, k: int | None) -> NDArray[Any]:
    """Keeps the k largest of each row, (..., V); ties at the boundary are kept. None or k <= 0 keeps all.

    Like all filters: returns a new array of the same dtype (float32 or float64), -inf in the dropped positions, kept
    values unchanged. RuntimeError for NaN or +inf.
    """
    return _filter(_kvasir.top_k_filter, logits, 0 if k is None else min(_arrays.integer("k", k), _arrays.INT32_MAX))


def top_p_filter(logits: ArrayLike, p: float | None) -> NDArray[Any]:
    """Drops a token if the mass strictly before it, going down from the most probable, has already reached p.

    The argmax is always kept. None or p >= 1 keeps all.
    """
    return _filter(_kvasir.top_p_filter, logits, 1.0 if p is None else _arrays.number("p", p))


def min_p_filter(logits: ArrayLike, min_p: float | None) -> NDArray[Any]:
    """Keeps the tokens with probability >= min_p * (largest probability). None or min_p <= 0 keeps all."""
    return _filter(_kvasir.min_p_filter, logits, 0.0 if min_p is None else _arrays.number("min_p", min_p))


def _sampling(
    temperature: float, top_k: int | None, top_p: float | None, min_p: float | None
) -> tuple[float, int, float, float]:
    return (
        _arrays.number("temperature", temperature),
        0 if top_k is None else _arrays.integer("top_k", top_k),
        1.0 if top_p is None else _arrays.number("top_p", top_p),
        0.0 if min_p is None else _arrays.number("min_p", min_p),
    )


def sample_next(
    logits: ArrayLike,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    generator: Generator | None = None,
) -> Ids:
    """One token id a row, (B,), from logits (B, V): temperature, top-k, top-p, min-p, then a draw from what is left.

    Temperature 0 is greedy and skips the rest; the lowest id wins ties. Without a generator the module's own is used,
    which starts with seed 0. float64 logits are rounded to float32, in which the engine keeps logits. RuntimeError for
    rows that are NaN or hold nothing but -inf.
    """
    given = _arrays.array("logits", logits, ("float32", "float64"), ("B", "V"))
    options = _sampling(temperature, top_k, top_p, min_p)
    source = _native_generator(generator) or _default_generator._generator
    return _kvasir.sample_next(given.astype(np.float32), *options, source).astype(np.int64)


def generate(
    model: TinyLM,
    prompt: ArrayLike,
    max_new_tokens: int,
    use_cache: bool = True,
    prefill_chunk: int | None = None,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    generator: Generator | None = None,
) -> Ids:
    """The prompt, (B, P), followed by max_new_tokens new tokens: (B, P + max_new_tokens).

    Neither use_cache nor prefill_chunk (tokens a run at most; None: all in one) changes a bit of any result. Without a
    generator the call draws from one with seed 0. ValueError if prompt and new tokens together exceed max_seq.
    """
    if not isinstance(model, TinyLM):
        raise ValueError(f"model is a {type(model).__name__}, must be a kvasir.lab.TinyLM")
    return _kvasir.generate(
        model._layer,
        _arrays.token_ids("prompt", prompt, ("B", "P"), model.cfg.vocab_size),
        _arrays.integer("max_new_tokens", max_new_tokens),
        bool(use_cache),
        0 if prefill_chunk is None else _arrays.integer("prefill_chunk", prefill_chunk),
        *_sampling(temperature, top_k, top_p, min_p),
        _native_generator(generator),
    ).astype(np.int64)
