// Sixteen float lanes on AVX-512 (F, BW, DQ, VL): one register. Included once, inside the target region and
// namespace of one of the kernel sets of this folder; the loops over these types are in simd/.

// Tiles of linear layers: rows times panels, as many as 32 registers hold.
inline constexpr int kFloatRows = 6;
inline constexpr int kFloatPanels = 4;
inline constexpr int kOneRowPanels = 4;  // of floats: enough independent chains to hide their latency
inline constexpr int kQuantRows = 6;
inline constexpr int kQuantPanels = 2;
inline constexpr int kSubScaleRows = 4;  // Q6_K, which needs twice the sums
inline constexpr int kNarrowRows = 6;    // up to here, quants are not widened into memory first
inline constexpr int kNarrowTileRows = 6;

struct F32x16 {
  __m512 v;

  static F32x16 zero() { return {_mm512_setzero_ps()}; }
  static F32x16 all(float value) { return {_mm512_set1_ps(value)}; }
  static F32x16 load(const float* p) { return {_mm512_loadu_ps(p)}; }
  static F32x16 load_half(const std::uint16_t* p) {
    return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
  }
  // The bfloat16 numbers in the high (low) halves of 16 words.
  static F32x16 high_halves(const std::uint32_t* p) {
    return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32(-0x10000)))};
  }
  static F32x16 low_halves(const std::uint32_t* p) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16))};
  }
  static F32x16 from_uint8(const std::byte* p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
  }
  static F32x16 from_int8(const std::byte* p) {
    return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
  }
  void store(float* p) const { _mm512_storeu_ps(p, v); }
};

struct I32x16 {
  __m512i v;

  static I32x16 all(std::int32_t value) { return {_mm512_set1_epi32(value)}; }
  template <int n>
  I32x16 shift_left() const {
    return {_mm512_slli_epi32(v, n)};
  }
};
inline I32x16 operator-(I32x16 a, I32x16 b) { return {_mm512_sub_epi32(a.v, b.v)}; }

// 64 bytes, seen as 16 outputs times 4 inputs. Shifts move bits across neighbouring bytes, too: mask them.
struct Bytes64 {
  __m512i v;

  static Bytes64 all(std::uint8_t value) { return {_mm512_set1_epi8(static_cast<char>(value))}; }
  static Bytes64 load(const std::byte* p) { return {_mm512_loadu_si512(p)}; }
  void store(std::byte* p) const { _mm512_storeu_si512(p, v); }
  template <int n>
  Bytes64 shift_left() const {
    return {_mm512_slli_epi16(v, n)};
  }
  template <int n>
  Bytes64 shift_right() const {
    return {_mm512_srli_epi16(v, n)};
  }
};
inline Bytes64 operator&(Bytes64 a, Bytes64 b) { return {_mm512_and_si512(a.v, b.v)}; }
inline Bytes64 operator|(Bytes64 a, Bytes64 b) { return {_mm512_or_si512(a.v, b.v)}; }

// Four neighbouring inputs, repeated for every output.
struct FourInputs {
  __m512i v;

  explicit FourInputs(const std::int8_t* p) {
    std::int32_t four;
    std::memcpy(&four, p, sizeof four);
    v = _mm512_set1_epi32(four);
  }
};

inline F32x16 operator+(F32x16 a, F32x16 b) { return {_mm512_add_ps(a.v, b.v)}; }
inline F32x16 operator-(F32x16 a, F32x16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
inline F32x16 operator*(F32x16 a, F32x16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
inline F32x16 operator/(F32x16 a, F32x16 b) { return {_mm512_div_ps(a.v, b.v)}; }
inline F32x16 negate(F32x16 a) { return {_mm512_xor_ps(a.v, _mm512_set1_ps(-0.0F))}; }
inline F32x16 fma(F32x16 a, F32x16 b, F32x16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
inline F32x16 max(F32x16 a, F32x16 b) { return {_mm512_max_ps(a.v, b.v)}; }

// Lane by lane: a < b ? x : y.
inline F32x16 select_less(F32x16 a, F32x16 b, F32x16 x, F32x16 y) {
  return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ), y.v, x.v)};
}

// The first `count` lanes of a, the others from b.
inline F32x16 select_first(std::int64_t count, F32x16 a, F32x16 b) {
  const auto mask = static_cast<__mmask16>(count >= 16 ? 0xffff : (1U << count) - 1U);
  return {_mm512_mask_blend_ps(mask, b.v, a.v)};
}

inline F32x16 to_float(I32x16 a) { return {_mm512_cvtepi32_ps(a.v)}; }

#include "kernels/avx2/reduce.h"

// Sum of the lanes as the tree of the definition: i with i + 8, i + 4, i + 2, i + 1.
inline float tree_sum(F32x16 a) {
  return tree_sum(_mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1)));
}

inline float max_lane(F32x16 a) {
  return max_lane(_mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1)));
}

// 2^n * p, where the integer n stands in the low bits of t = n + kRoundMagic. Two factors: see the
// definition.
inline F32x16 scale_by_power(F32x16 p, F32x16 t) {
  const __m512i bias = _mm512_set1_epi32(127);
  const __m512i n = _mm512_sub_epi32(_mm512_castps_si512(t.v), _mm512_set1_epi32(kRoundMagicBits));
  const __m512i first = _mm512_srai_epi32(n, 1);
  const __m512i second = _mm512_sub_epi32(n, first);
  const __m512 scale1 = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(first, bias), 23));
  const __m512 scale2 = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(second, bias), 23));
  return {_mm512_mul_ps(_mm512_mul_ps(p.v, scale1), scale2)};
}

// ---- The KV cache's number formats

template <KvType type>
F32x16 load_kv(const std::byte* base, std::size_t index) {
  if constexpr (type == KvType::kF32) {
    return F32x16::load(reinterpret_cast<const float*>(base) + index);
  } else {
    const __m256i halves = _mm256_loadu_si256(
        reinterpret_cast<const __m256i*>(reinterpret_cast<const std::uint16_t*>(base) + index));
    if constexpr (type == KvType::kF16) {
      return {_mm512_cvtph_ps(halves)};
    } else {
      return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16))};
    }
  }
}

// Rounded to nearest even, as f32_to_f16.
inline void store_half(F32x16 a, std::uint16_t* p) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT));
}

// ---- Quantization of one block of 32 inputs

inline std::uint32_t absmax_bits(const float* x) {
  const __m512i mask = _mm512_set1_epi32(0x7fffffff);
  const __m512i low = _mm512_and_si512(_mm512_loadu_si512(x), mask);
  const __m512i high = _mm512_and_si512(_mm512_loadu_si512(x + 16), mask);
  return _mm512_reduce_max_epu32(_mm512_max_epu32(low, high));
}

// quants[i] = x[i] / scale to the nearest integer; sums: of the first 16 and of the others.
inline void quantize_block(const float* x, float scale, std::int8_t* quants, std::int32_t* sums) {
  const __m512 divisor = _mm512_set1_ps(scale);
  const __m512i low = _mm512_cvtps_epi32(_mm512_div_ps(_mm512_loadu_ps(x), divisor));
  const __m512i high = _mm512_cvtps_epi32(_mm512_div_ps(_mm512_loadu_ps(x + 16), divisor));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(quants), _mm512_cvtepi32_epi8(low));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(quants + 16), _mm512_cvtepi32_epi8(high));
  sums[0] = _mm512_reduce_add_epi32(low);
  sums[1] = _mm512_reduce_add_epi32(high);
}
