// Exact conversions between float32 and the 16-bit formats, in integer arithmetic.
#ifndef KVASIR_KERNELS_HALF_H_
#define KVASIR_KERNELS_HALF_H_

#include <bit>
#include <cstdint>

namespace kvasir::kernels {

// IEEE binary16 to binary32; exact for every input.
inline float f16_to_f32(std::uint16_t half) {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000) << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1f;
  std::uint32_t fraction = half & 0x3ff;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000 | (fraction << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (fraction << 13));
  // Zero or subnormal: fraction * 2^-24, exact in float32.
  const float magnitude = static_cast<float>(fraction) * 0x1p-24F;
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(magnitude));
}

// Rounds to nearest even; beyond the largest half gives infinity; NaN stays NaN (quieted, payload's top bits
// kept).
inline std::uint16_t f32_to_f16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000);
  const std::uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000) return static_cast<std::uint16_t>(sign | 0x7e00 | ((magnitude >> 13) & 0x1ff));
  if (magnitude >= 0x47800000) return static_cast<std::uint16_t>(sign | 0x7c00);  // >= 2^16
  if (magnitude < 0x38800000) {
    // Below 2^-14: a multiple of 2^-24. Adding 0.5 puts that multiple, rounded to even, into the low fraction
    // bits.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000));
  }
  const std::uint32_t odd = (magnitude >> 13) & 1;
  const std::uint32_t rounded =
      magnitude - 0x38000000 + 0xfff + odd;  // a carry moves into the exponent as it should
  return static_cast<std::uint16_t>(sign | (rounded >> 13));
}

inline float bf16_to_f32(std::uint16_t value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16);
}

// Rounds to nearest even; NaN stays NaN.
inline std::uint16_t f32_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<std::uint16_t>((bits >> 16) | 0x40);
  return static_cast<std::uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

// Zero for a bfloat16 number below 2^-48 in magnitude: see round_bf16 in kernels.h.
inline std::uint16_t bf16_without_tiny(std::uint16_t value) {
  return (value & 0x7f80U) < (127U - 48U) << 7 ? std::uint16_t{0} : value;
}

// Number i of consecutive ones that lie in pairs: the even one in the high half of a word.
inline float bf16_of_pair(std::uint32_t pair, std::int64_t i) {
  return bf16_to_f32(static_cast<std::uint16_t>(i % 2 == 0 ? pair >> 16 : pair));
}

}  // namespace kvasir::kernels

#endif  // KVASIR_KERNELS_HALF_H_
