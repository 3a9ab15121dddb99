"""Writes TYPE.blocks (random stored blocks) and TYPE.f32 (their values, little-endian float32) with the PyPI package
`gguf` as an independent implementation. Run: python make_quants.py (needs numpy and gguf 0.19)."""
import pathlib

import gguf
import numpy as np

HERE = pathlib.Path(__file__).parent
TYPES = ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"]
HALVES = {"F16": [0], "BF16": [], "Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2],
          "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}

rng = np.random.default_rng(20261130)
for name in TYPES:
    kind = gguf.GGMLQuantizationType[name]
    values, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = 12 if values == 256 else 64 if values == 32 else 512
    data = rng.integers(0, 256, (blocks, size), dtype=np.uint8)
    for at in HALVES[name]:  # scales: finite, of both signs, some subnormal, some zero
        scale = rng.normal(0, 0.05, blocks).astype(np.float16)
        scale[0], scale[1] = np.float16(3e-7), np.float16(0)
        data[:, at:at + 2] = scale.view(np.uint8).reshape(blocks, 2)
    if name == "BF16":
        data = (rng.normal(0, 1, blocks).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
        data = data.reshape(blocks, 2)
    out = gguf.quants.dequantize(data.reshape(-1), kind).astype("<f4")
    assert np.isfinite(out).all()
    (HERE / f"{name}.blocks").write_bytes(data.tobytes())
    (HERE / f"{name}.f32").write_bytes(out.tobytes())
