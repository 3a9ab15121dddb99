// Sixteen float lanes on NEON (the base of 64-bit Arm): four registers. Included once, inside the target
// region and namespace of one of the kernel sets of this folder; the loops over these types are in simd/.

// Tiles of linear layers: rows times panels, as many as 32 registers hold without spilling sums.
inline constexpr int kFloatRows = 5;
inline constexpr int kFloatPanels = 1;
inline constexpr int kOneRowPanels = 4;  // of floats: enough independent chains to hide their latency
inline constexpr int kQuantRows = 2;
inline constexpr int kQuantPanels = 1;
inline constexpr int kSubScaleRows = 1;  // Q6_K, which needs twice the sums
inline constexpr int kNarrowRows = 2;    // up to here, quants are not widened into memory first
inline constexpr int kNarrowTileRows = 2;

struct F32x16 {
  float32x4_t a, b, c, d;

  static F32x16 zero() { return all(0.0F); }
  static F32x16 all(float value) {
    const float32x4_t four = vdupq_n_f32(value);
    return {four, four, four, four};
  }
  static F32x16 load(const float* p) {
    return {vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)};
  }
  static F32x16 load_half(const std::uint16_t* p) {
    const float16x8_t low = vreinterpretq_f16_u16(vld1q_u16(p)),
                      high = vreinterpretq_f16_u16(vld1q_u16(p + 8));
    return {vcvt_f32_f16(vget_low_f16(low)), vcvt_high_f32_f16(low), vcvt_f32_f16(vget_low_f16(high)),
            vcvt_high_f32_f16(high)};
  }
  // bfloat16 numbers.
  static F32x16 load_bfloat(const std::uint16_t* p) {
    const auto widened = [](uint16x4_t four) {
      return vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(four), 16));
    };
    return {widened(vld1_u16(p)), widened(vld1_u16(p + 4)), widened(vld1_u16(p + 8)),
            widened(vld1_u16(p + 12))};
  }
  // The bfloat16 numbers in the high (low) halves of 16 words.
  static F32x16 high_halves(const std::uint32_t* p) {
    const auto high = [](const std::uint32_t* words) {
      return vreinterpretq_f32_u32(vandq_u32(vld1q_u32(words), vdupq_n_u32(0xffff0000)));
    };
    return {high(p), high(p + 4), high(p + 8), high(p + 12)};
  }
  static F32x16 low_halves(const std::uint32_t* p) {
    const auto low = [](const std::uint32_t* words) {
      return vreinterpretq_f32_u32(vshlq_n_u32(vld1q_u32(words), 16));
    };
    return {low(p), low(p + 4), low(p + 8), low(p + 12)};
  }
  static F32x16 from_uint8(const std::byte* p) {
    const uint8x16_t bytes = vld1q_u8(reinterpret_cast<const std::uint8_t*>(p));
    const uint16x8_t low = vmovl_u8(vget_low_u8(bytes)), high = vmovl_high_u8(bytes);
    return {vcvtq_f32_u32(vmovl_u16(vget_low_u16(low))), vcvtq_f32_u32(vmovl_high_u16(low)),
            vcvtq_f32_u32(vmovl_u16(vget_low_u16(high))), vcvtq_f32_u32(vmovl_high_u16(high))};
  }
  static F32x16 from_int8(const std::byte* p) {
    const int8x16_t bytes = vld1q_s8(reinterpret_cast<const std::int8_t*>(p));
    const int16x8_t low = vmovl_s8(vget_low_s8(bytes)), high = vmovl_high_s8(bytes);
    return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_high_s16(low)),
            vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_high_s16(high))};
  }
  void store(float* p) const {
    vst1q_f32(p, a);
    vst1q_f32(p + 4, b);
    vst1q_f32(p + 8, c);
    vst1q_f32(p + 12, d);
  }
};

struct I32x16 {
  int32x4_t a, b, c, d;

  static I32x16 all(std::int32_t value) {
    const int32x4_t four = vdupq_n_s32(value);
    return {four, four, four, four};
  }
  template <int n>
  I32x16 shift_left() const {
    return {vshlq_n_s32(a, n), vshlq_n_s32(b, n), vshlq_n_s32(c, n), vshlq_n_s32(d, n)};
  }
};
inline I32x16 operator-(I32x16 x, I32x16 y) {
  return {vsubq_s32(x.a, y.a), vsubq_s32(x.b, y.b), vsubq_s32(x.c, y.c), vsubq_s32(x.d, y.d)};
}

// 64 bytes, seen as 16 outputs times 4 inputs.
struct Bytes64 {
  uint8x16_t a, b, c, d;

  static Bytes64 all(std::uint8_t value) {
    const uint8x16_t bytes = vdupq_n_u8(value);
    return {bytes, bytes, bytes, bytes};
  }
  static Bytes64 load(const std::byte* p) {
    const auto* bytes = reinterpret_cast<const std::uint8_t*>(p);
    return {vld1q_u8(bytes), vld1q_u8(bytes + 16), vld1q_u8(bytes + 32), vld1q_u8(bytes + 48)};
  }
  void store(std::byte* p) const {
    auto* bytes = reinterpret_cast<std::uint8_t*>(p);
    vst1q_u8(bytes, a);
    vst1q_u8(bytes + 16, b);
    vst1q_u8(bytes + 32, c);
    vst1q_u8(bytes + 48, d);
  }
  template <int n>
  Bytes64 shift_left() const {
    return {vshlq_n_u8(a, n), vshlq_n_u8(b, n), vshlq_n_u8(c, n), vshlq_n_u8(d, n)};
  }
  template <int n>
  Bytes64 shift_right() const {
    return {vshrq_n_u8(a, n), vshrq_n_u8(b, n), vshrq_n_u8(c, n), vshrq_n_u8(d, n)};
  }
};
inline Bytes64 operator&(Bytes64 x, Bytes64 y) {
  return {vandq_u8(x.a, y.a), vandq_u8(x.b, y.b), vandq_u8(x.c, y.c), vandq_u8(x.d, y.d)};
}
inline Bytes64 operator|(Bytes64 x, Bytes64 y) {
  return {vorrq_u8(x.a, y.a), vorrq_u8(x.b, y.b), vorrq_u8(x.c, y.c), vorrq_u8(x.d, y.d)};
}

// Four neighbouring inputs, repeated for every output.
struct FourInputs {
  int8x16_t v;

  explicit FourInputs(const std::int8_t* p) {
    std::int32_t four;
    std::memcpy(&four, p, sizeof four);
    v = vreinterpretq_s8_s32(vdupq_n_s32(four));
  }
};

inline F32x16 operator+(F32x16 x, F32x16 y) {
  return {vaddq_f32(x.a, y.a), vaddq_f32(x.b, y.b), vaddq_f32(x.c, y.c), vaddq_f32(x.d, y.d)};
}
inline F32x16 operator-(F32x16 x, F32x16 y) {
  return {vsubq_f32(x.a, y.a), vsubq_f32(x.b, y.b), vsubq_f32(x.c, y.c), vsubq_f32(x.d, y.d)};
}
inline F32x16 operator*(F32x16 x, F32x16 y) {
  return {vmulq_f32(x.a, y.a), vmulq_f32(x.b, y.b), vmulq_f32(x.c, y.c), vmulq_f32(x.d, y.d)};
}
inline F32x16 operator/(F32x16 x, F32x16 y) {
  return {vdivq_f32(x.a, y.a), vdivq_f32(x.b, y.b), vdivq_f32(x.c, y.c), vdivq_f32(x.d, y.d)};
}
inline F32x16 negate(F32x16 x) { return {vnegq_f32(x.a), vnegq_f32(x.b), vnegq_f32(x.c), vnegq_f32(x.d)}; }
inline F32x16 fma(F32x16 x, F32x16 y, F32x16 z) {
  return {vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b), vfmaq_f32(z.c, x.c, y.c),
          vfmaq_f32(z.d, x.d, y.d)};
}

// Lane by lane: a < b ? x : y.
inline F32x16 select_less(F32x16 a, F32x16 b, F32x16 x, F32x16 y) {
  return {vbslq_f32(vcltq_f32(a.a, b.a), x.a, y.a), vbslq_f32(vcltq_f32(a.b, b.b), x.b, y.b),
          vbslq_f32(vcltq_f32(a.c, b.c), x.c, y.c), vbslq_f32(vcltq_f32(a.d, b.d), x.d, y.d)};
}

// Lane by lane: y < x ? x : y, as the definition has it, so that a NaN in x is passed over.
inline F32x16 max(F32x16 x, F32x16 y) { return select_less(y, x, x, y); }

// The first `count` lanes of x, the others from y.
inline F32x16 select_first(std::int64_t count, F32x16 x, F32x16 y) {
  constexpr std::int32_t kLanes[4] = {0, 1, 2, 3};
  const int32x4_t left = vsubq_s32(vdupq_n_s32(static_cast<std::int32_t>(count)), vld1q_s32(kLanes));
  const auto first = [&](int lane) { return vcgtq_s32(left, vdupq_n_s32(lane)); };
  return {vbslq_f32(first(0), x.a, y.a), vbslq_f32(first(4), x.b, y.b), vbslq_f32(first(8), x.c, y.c),
          vbslq_f32(first(12), x.d, y.d)};
}

inline F32x16 to_float(I32x16 x) {
  return {vcvtq_f32_s32(x.a), vcvtq_f32_s32(x.b), vcvtq_f32_s32(x.c), vcvtq_f32_s32(x.d)};
}

// Sum of the lanes as the tree of the definition: i with i + 8, i + 4, i + 2, i + 1.
inline float tree_sum(F32x16 x) {
  const float32x4_t four = vaddq_f32(vaddq_f32(x.a, x.c), vaddq_f32(x.b, x.d));
  return vpadds_f32(vadd_f32(vget_low_f32(four), vget_high_f32(four)));
}

// No lane is NaN.
inline float max_lane(F32x16 x) { return vmaxvq_f32(vmaxq_f32(vmaxq_f32(x.a, x.b), vmaxq_f32(x.c, x.d))); }

// 2^n * p, where the integer n stands in the low bits of t = n + kRoundMagic. Two factors: see the
// definition.
inline float32x4_t scale_by_power(float32x4_t p, float32x4_t t) {
  const uint32x4_t bias = vdupq_n_u32(127);
  const uint32x4_t n = vsubq_u32(vreinterpretq_u32_f32(t), vdupq_n_u32(kRoundMagicBits));
  const uint32x4_t first = vreinterpretq_u32_s32(vshrq_n_s32(vreinterpretq_s32_u32(n), 1));
  const uint32x4_t second = vsubq_u32(n, first);
  const float32x4_t scale1 = vreinterpretq_f32_u32(vshlq_n_u32(vaddq_u32(first, bias), 23));
  const float32x4_t scale2 = vreinterpretq_f32_u32(vshlq_n_u32(vaddq_u32(second, bias), 23));
  return vmulq_f32(vmulq_f32(p, scale1), scale2);
}
inline F32x16 scale_by_power(F32x16 p, F32x16 t) {
  return {scale_by_power(p.a, t.a), scale_by_power(p.b, t.b), scale_by_power(p.c, t.c),
          scale_by_power(p.d, t.d)};
}

// ---- The KV cache's number formats

template <KvType type>
F32x16 load_kv(const std::byte* base, std::size_t index) {
  if constexpr (type == KvType::kF32) {
    return F32x16::load(reinterpret_cast<const float*>(base) + index);
  } else if constexpr (type == KvType::kF16) {
    return F32x16::load_half(reinterpret_cast<const std::uint16_t*>(base) + index);
  } else {
    return F32x16::load_bfloat(reinterpret_cast<const std::uint16_t*>(base) + index);
  }
}

// Rounded to nearest even, as f32_to_f16.
inline void store_half(F32x16 x, std::uint16_t* p) {
  vst1q_u16(p, vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(x.a), x.b)));
  vst1q_u16(p + 8, vreinterpretq_u16_f16(vcvt_high_f16_f32(vcvt_f16_f32(x.c), x.d)));
}

// ---- Quantization of one block of 32 inputs

inline std::uint32_t absmax_bits(const float* x) {
  uint32x4_t largest = vdupq_n_u32(0);
  for (int i = 0; i < 32; i += 4) {
    largest = vmaxq_u32(largest, vreinterpretq_u32_f32(vabsq_f32(vld1q_f32(x + i))));
  }
  return vmaxvq_u32(largest);
}

// quants[i] = x[i] / scale to the nearest integer; sums: of the first 16 and of the others.
inline void quantize_block(const float* x, float scale, std::int8_t* quants, std::int32_t* sums) {
  const float32x4_t divisor = vdupq_n_f32(scale);
  for (int half = 0; half < 2; ++half, x += 16, quants += 16) {
    int32x4_t values[4];
    for (int i = 0; i < 4; ++i) values[i] = vcvtnq_s32_f32(vdivq_f32(vld1q_f32(x + 4 * i), divisor));
    sums[half] = vaddvq_s32(vaddq_s32(vaddq_s32(values[0], values[1]), vaddq_s32(values[2], values[3])));
    const int16x8_t low = vmovn_high_s32(vmovn_s32(values[0]), values[1]);
    const int16x8_t high = vmovn_high_s32(vmovn_s32(values[2]), values[3]);
    vst1q_s8(quants, vmovn_high_s16(vmovn_s16(low), high));
  }
}
