// Sixteen float lanes on AVX2 + FMA + F16C: two registers. Included once, inside the target region and
// namespace of avx2/kernels.cc; the loops over these types are in simd/.

// Tiles of linear layers: rows times panels, as many as 16 registers hold.
inline constexpr int kFloatRows = 6;
inline constexpr int kFloatPanels = 1;
inline constexpr int kOneRowPanels = 4;  // of floats: enough independent chains to hide their latency
inline constexpr int kQuantRows = 3;
inline constexpr int kQuantPanels = 1;
inline constexpr int kSubScaleRows = 2;  // Q6_K, which needs twice the sums
inline constexpr int kNarrowRows = 6;    // up to here, quants are not widened into memory first
inline constexpr int kNarrowTileRows = 3;

struct F32x16 {
  __m256 low, high;

  static F32x16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static F32x16 all(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
  static F32x16 load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static F32x16 load_half(const std::uint16_t* p) {
    return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
            _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
  }
  // The bfloat16 numbers in the high (low) halves of 16 words.
  static F32x16 high_halves(const std::uint32_t* p) {
    const __m256i mask = _mm256_set1_epi32(-0x10000);
    return {_mm256_castsi256_ps(_mm256_and_si256(load_words(p), mask)),
            _mm256_castsi256_ps(_mm256_and_si256(load_words(p + 8), mask))};
  }
  static F32x16 low_halves(const std::uint32_t* p) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(load_words(p), 16)),
            _mm256_castsi256_ps(_mm256_slli_epi32(load_words(p + 8), 16))};
  }
  static F32x16 from_uint8(const std::byte* p) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes)),
            _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes, 8)))};
  }
  static F32x16 from_int8(const std::byte* p) {
    const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)),
            _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_srli_si128(bytes, 8)))};
  }
  void store(float* p) const {
    _mm256_storeu_ps(p, low);
    _mm256_storeu_ps(p + 8, high);
  }

 private:
  static __m256i load_words(const std::uint32_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
};

struct I32x16 {
  __m256i low, high;

  static I32x16 all(std::int32_t value) { return {_mm256_set1_epi32(value), _mm256_set1_epi32(value)}; }
  template <int n>
  I32x16 shift_left() const {
    return {_mm256_slli_epi32(low, n), _mm256_slli_epi32(high, n)};
  }
};
inline I32x16 operator-(I32x16 a, I32x16 b) {
  return {_mm256_sub_epi32(a.low, b.low), _mm256_sub_epi32(a.high, b.high)};
}

// 64 bytes, seen as 16 outputs times 4 inputs. Shifts move bits across neighbouring bytes, too: mask them.
struct Bytes64 {
  __m256i low, high;

  static Bytes64 all(std::uint8_t value) {
    return {_mm256_set1_epi8(static_cast<char>(value)), _mm256_set1_epi8(static_cast<char>(value))};
  }
  static Bytes64 load(const std::byte* p) {
    return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
            _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 32))};
  }
  void store(std::byte* p) const {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), low);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 32), high);
  }
  template <int n>
  Bytes64 shift_left() const {
    return {_mm256_slli_epi16(low, n), _mm256_slli_epi16(high, n)};
  }
  template <int n>
  Bytes64 shift_right() const {
    return {_mm256_srli_epi16(low, n), _mm256_srli_epi16(high, n)};
  }
};
inline Bytes64 operator&(Bytes64 a, Bytes64 b) {
  return {_mm256_and_si256(a.low, b.low), _mm256_and_si256(a.high, b.high)};
}
inline Bytes64 operator|(Bytes64 a, Bytes64 b) {
  return {_mm256_or_si256(a.low, b.low), _mm256_or_si256(a.high, b.high)};
}

// Four neighbouring inputs, repeated for every output.
struct FourInputs {
  __m256i v;

  explicit FourInputs(const std::int8_t* p) {
    std::int32_t four;
    std::memcpy(&four, p, sizeof four);
    v = _mm256_set1_epi32(four);
  }
};

inline F32x16 operator+(F32x16 a, F32x16 b) {
  return {_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}
inline F32x16 operator-(F32x16 a, F32x16 b) {
  return {_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}
inline F32x16 operator*(F32x16 a, F32x16 b) {
  return {_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}
inline F32x16 operator/(F32x16 a, F32x16 b) {
  return {_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}
inline F32x16 negate(F32x16 a) {
  const __m256 sign = _mm256_set1_ps(-0.0F);
  return {_mm256_xor_ps(a.low, sign), _mm256_xor_ps(a.high, sign)};
}
inline F32x16 fma(F32x16 a, F32x16 b, F32x16 c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline F32x16 max(F32x16 a, F32x16 b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }

// Lane by lane: a < b ? x : y.
inline F32x16 select_less(F32x16 a, F32x16 b, F32x16 x, F32x16 y) {
  return {_mm256_blendv_ps(y.low, x.low, _mm256_cmp_ps(a.low, b.low, _CMP_LT_OQ)),
          _mm256_blendv_ps(y.high, x.high, _mm256_cmp_ps(a.high, b.high, _CMP_LT_OQ))};
}

// The first `count` lanes of a, the others from b.
inline F32x16 select_first(std::int64_t count, F32x16 a, F32x16 b) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  const __m256i n = _mm256_set1_epi32(static_cast<int>(count));
  const __m256i low = _mm256_cmpgt_epi32(n, lane);
  const __m256i high = _mm256_cmpgt_epi32(n, _mm256_add_epi32(lane, _mm256_set1_epi32(8)));
  return {_mm256_blendv_ps(b.low, a.low, _mm256_castsi256_ps(low)),
          _mm256_blendv_ps(b.high, a.high, _mm256_castsi256_ps(high))};
}

inline F32x16 to_float(I32x16 a) { return {_mm256_cvtepi32_ps(a.low), _mm256_cvtepi32_ps(a.high)}; }

#include "kernels/avx2/reduce.h"

// Sum of the lanes as the tree of the definition: i with i + 8, i + 4, i + 2, i + 1.
inline float tree_sum(F32x16 a) { return tree_sum(_mm256_add_ps(a.low, a.high)); }

inline float max_lane(F32x16 a) { return max_lane(_mm256_max_ps(a.low, a.high)); }

// 2^n * p, where the integer n stands in the low bits of t = n + kRoundMagic. Two factors: see the
// definition.
inline __m256 scale_by_power(__m256 p, __m256 t) {
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256i n = _mm256_sub_epi32(_mm256_castps_si256(t), _mm256_set1_epi32(kRoundMagicBits));
  const __m256i first = _mm256_srai_epi32(n, 1);
  const __m256i second = _mm256_sub_epi32(n, first);
  const __m256 scale1 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(first, bias), 23));
  const __m256 scale2 = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(second, bias), 23));
  return _mm256_mul_ps(_mm256_mul_ps(p, scale1), scale2);
}
inline F32x16 scale_by_power(F32x16 p, F32x16 t) {
  return {scale_by_power(p.low, t.low), scale_by_power(p.high, t.high)};
}

// ---- The KV cache's number formats

template <KvType type>
F32x16 load_kv(const std::byte* base, std::size_t index) {
  if constexpr (type == KvType::kF32) {
    return F32x16::load(reinterpret_cast<const float*>(base) + index);
  } else {
    const __m256i halves = _mm256_loadu_si256(
        reinterpret_cast<const __m256i*>(reinterpret_cast<const std::uint16_t*>(base) + index));
    const __m128i low = _mm256_castsi256_si128(halves);
    const __m128i high = _mm256_extracti128_si256(halves, 1);
    if constexpr (type == KvType::kF16) {
      return {_mm256_cvtph_ps(low), _mm256_cvtph_ps(high)};
    } else {
      return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(low), 16)),
              _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(high), 16))};
    }
  }
}

// Rounded to nearest even, as f32_to_f16.
inline void store_half(F32x16 a, std::uint16_t* p) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph(a.low, _MM_FROUND_TO_NEAREST_INT));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8), _mm256_cvtps_ph(a.high, _MM_FROUND_TO_NEAREST_INT));
}

// ---- Quantization of one block of 32 inputs

inline std::uint32_t absmax_bits(const float* x) {
  const __m256i mask = _mm256_set1_epi32(0x7fffffff);
  const auto magnitude = [&](int i) {
    return _mm256_and_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + 8 * i)), mask);
  };
  const __m256i eight = _mm256_max_epu32(_mm256_max_epu32(magnitude(0), magnitude(1)),
                                         _mm256_max_epu32(magnitude(2), magnitude(3)));
  const __m128i four = _mm_max_epu32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  const __m128i two = _mm_max_epu32(four, _mm_shuffle_epi32(four, 0x4e));
  return static_cast<std::uint32_t>(_mm_cvtsi128_si32(_mm_max_epu32(two, _mm_shuffle_epi32(two, 0xb1))));
}

inline std::int32_t sum_lanes(__m256i eight) {
  const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
}

// quants[i] = x[i] / scale to the nearest integer; sums: of the first 16 and of the others.
inline void quantize_block(const float* x, float scale, std::int8_t* quants, std::int32_t* sums) {
  const __m256 divisor = _mm256_set1_ps(scale);
  __m256i values[4];
  for (int i = 0; i < 4; ++i)
    values[i] = _mm256_cvtps_epi32(_mm256_div_ps(_mm256_loadu_ps(x + 8 * i), divisor));
  sums[0] = sum_lanes(_mm256_add_epi32(values[0], values[1]));
  sums[1] = sum_lanes(_mm256_add_epi32(values[2], values[3]));
  const __m256i pairs0 = _mm256_packs_epi32(values[0], values[1]);
  const __m256i pairs1 = _mm256_packs_epi32(values[2], values[3]);
  const __m256i bytes = _mm256_packs_epi16(pairs0, pairs1);
  const __m256i ordered = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(quants), ordered);
}
