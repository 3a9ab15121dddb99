// Everything between the linear layers, over 16 lanes. Included as linear.h is.

inline F32x16 exp_f32(F32x16 x) {
  const F32x16 t = fma(x, F32x16::all(kLog2E), F32x16::all(kRoundMagic));
  const F32x16 n = t - F32x16::all(kRoundMagic);
  F32x16 r = fma(n, F32x16::all(-kLn2High), x);
  r = fma(n, F32x16::all(-kLn2Low), r);
  F32x16 p = F32x16::all(kExpCoefficients[0]);
  for (int i = 1; i < 6; ++i) p = fma(p, r, F32x16::all(kExpCoefficients[i]));
  p = fma(p, r, F32x16::all(1.0F));
  p = fma(p, r, F32x16::all(1.0F));
  const F32x16 result = scale_by_power(p, t);
  const F32x16 not_small = select_less(x, F32x16::all(kExpUnderflow), F32x16::zero(), result);
  return select_less(F32x16::all(kExpOverflow), x, F32x16::all(std::numeric_limits<float>::infinity()),
                     not_small);
}

inline float exp_f32(float x) {
  float lanes[kPanel];
  exp_f32(F32x16::all(x)).store(lanes);
  return lanes[0];
}

// Calls fn(i, count) for each 16 of [0, n) with count = 16, and for what is left with a smaller count.
template <class Fn>
void for_each_16(std::int64_t n, Fn fn) {
  std::int64_t i = 0;
  for (; i + 16 <= n; i += 16) fn(i, std::int64_t{16});
  if (i < n) fn(i, n - i);
}

// Lanes from count on are zero.
inline F32x16 load_first(const float* p, std::int64_t count) {
  if (count == 16) return F32x16::load(p);
  float all[16] = {};
  std::memcpy(all, p, static_cast<std::size_t>(count) * sizeof(float));
  return F32x16::load(all);
}

inline void store_first(F32x16 value, float* p, std::int64_t count) {
  if (count == 16) {
    value.store(p);
    return;
  }
  float all[16];
  value.store(all);
  std::memcpy(p, all, static_cast<std::size_t>(count) * sizeof(float));
}

void quantize(const float* x, std::int64_t k, QuantizedBlock* blocks) {
  for (std::int64_t b = 0; b < k / kQuantBlock; ++b, x += kQuantBlock) {
    QuantizedBlock& block = blocks[b];
    const std::uint32_t bits = absmax_bits(x);
    const auto absmax = std::bit_cast<float>(bits);
    const bool zero = absmax < 0x1p-100F;
    const float scale = zero ? 0.0F : absmax / 127.0F;
    std::int32_t half_sums[2] = {};
    if (zero || bits >= 0x7f800000) {
      std::memset(block.quants, 0, kQuantBlock);
    } else {
      quantize_block(x, scale, block.quants, half_sums);
    }
    block.scale = scale;
    block.sum = half_sums[0] + half_sums[1];
    block.first_half_sum = half_sums[0];
    block.scaled_sum = scale * static_cast<float>(block.sum);
  }
}

void round_bf16(const float* x, std::int64_t k, std::uint32_t* pairs) {
  constexpr std::int64_t kAtOnce = 64;
  for (std::int64_t begin = 0; begin < k; begin += kAtOnce) {
    const std::int64_t count = std::min(kAtOnce, k - begin);
    std::uint32_t rounded[kAtOnce] = {};
    for (std::int64_t i = 0; i < count; ++i) {
      rounded[i] = bf16_without_tiny(f32_to_bf16(x[begin + i]));
    }
    for (std::int64_t i = 0; i < (count + 1) / 2; ++i) {
      pairs[begin / 2 + i] = rounded[2 * i] << 16 | rounded[2 * i + 1];
    }
  }
}

void rms_norm(const float* x, const float* weight, float eps, std::int64_t n, float* y) {
  F32x16 lanes[4];
  for (F32x16& four : lanes) four = F32x16::zero();
  for_each_16(n, [&](std::int64_t i, std::int64_t count) {
    const F32x16 values = load_first(x + i, count);
    F32x16& sum = lanes[i / 16 % 4];
    sum = fma(values, values, sum);
  });
  const float mean = tree_sum((lanes[0] + lanes[2]) + (lanes[1] + lanes[3])) / static_cast<float>(n);
  const F32x16 scale = F32x16::all(1.0F / std::sqrt(mean + eps));
  for_each_16(n, [&](std::int64_t i, std::int64_t count) {
    store_first((load_first(x + i, count) * scale) * load_first(weight + i, count), y + i, count);
  });
}

void swiglu(const float* gate, const float* up, std::int64_t n, float* out) {
  for_each_16(n, [&](std::int64_t i, std::int64_t count) {
    const F32x16 g = load_first(gate + i, count);
    const F32x16 silu = g / (F32x16::all(1.0F) + exp_f32(negate(g)));
    store_first(silu * load_first(up + i, count), out + i, count);
  });
}

void geglu(const float* gate, const float* up, std::int64_t n, float* out) {
  for_each_16(n, [&](std::int64_t i, std::int64_t count) {
    const F32x16 g = load_first(gate + i, count);
    const F32x16 exponent = g * fma(g * g, F32x16::all(kGeluCubic), F32x16::all(kGeluLinear));
    const F32x16 gelu = g / (F32x16::all(1.0F) + exp_f32(negate(exponent)));
    store_first(gelu * load_first(up + i, count), out + i, count);
  });
}

void add(float* x, const float* y, std::int64_t n) {
  for_each_16(n, [&](std::int64_t i, std::int64_t count) {
    store_first(load_first(x + i, count) + load_first(y + i, count), x + i, count);
  });
}

void rope(float* head, const float* cos, const float* sin, std::int64_t head_dim, RopePairing pairing) {
  const std::int64_t half = head_dim / 2;
  if (pairing == RopePairing::kInterleaved) {
    for (std::int64_t i = 0; i < half; ++i) {
      const float a = head[2 * i];
      const float b = head[2 * i + 1];
      head[2 * i] = std::fma(a, cos[i], -(b * sin[i]));
      head[2 * i + 1] = std::fma(b, cos[i], a * sin[i]);
    }
    return;
  }
  for_each_16(half, [&](std::int64_t i, std::int64_t count) {
    const F32x16 a = load_first(head + i, count);
    const F32x16 b = load_first(head + half + i, count);
    const F32x16 c = load_first(cos + i, count);
    const F32x16 s = load_first(sin + i, count);
    store_first(fma(a, c, negate(b * s)), head + i, count);
    store_first(fma(b, c, a * s), head + half + i, count);
  });
}
