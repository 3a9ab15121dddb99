// The float32 exponential, and the constants that the scalar definition and the vector kernels share.
//
// e^x = 2^n * e^r with n = x / ln 2 rounded to nearest even and r = x - n ln 2 in [-0.347, 0.347], where ln 2
// is split so that n * kLn2High is exact for |n| < 2^9. e^r is its Taylor polynomial of degree 7: the first
// term left out is below 0.347^8 / 8! = 5.2e-9, a tenth of an ulp.
#ifndef KVASIR_KERNELS_FLOAT_FUNCTIONS_H_
#define KVASIR_KERNELS_FLOAT_FUNCTIONS_H_

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace kvasir::kernels {

inline constexpr float kLog2E = 0x1.715476p+0F;
inline constexpr float kLn2High = 0x1.62e400p-1F;  // 15 significant bits: ln 2 = kLn2High + kLn2Low
inline constexpr float kLn2Low = 0x1.7f7d1cp-20F;
// Adding this to |t| < 2^22 rounds t to an integer, which then stands in the low bits of the sum.
inline constexpr float kRoundMagic = 0x1.8p23F;
inline constexpr std::uint32_t kRoundMagicBits = 0x4b400000;
// Coefficients 1/7! .. 1/2!, highest first; then 1 and 1.
inline constexpr float kExpCoefficients[] = {0x1.a01a02p-13F, 0x1.6c16c2p-10F, 0x1.111112p-7F,
                                             0x1.555556p-5F,  0x1.555556p-3F,  0x1p-1F};
inline constexpr float kExpOverflow = 88.7228394F;  // above: +inf
inline constexpr float kExpUnderflow =
    -87.3365447F;  // below: the result would be subnormal; it is defined as +0

inline float exp_f32(float x) {
  const float t = std::fma(x, kLog2E, kRoundMagic);
  const std::uint32_t n = std::bit_cast<std::uint32_t>(t) - kRoundMagicBits;  // two's complement
  const float n_float = t - kRoundMagic;
  float r = std::fma(n_float, -kLn2High, x);
  r = std::fma(n_float, -kLn2Low, r);
  float p = kExpCoefficients[0];
  for (int i = 1; i < 6; ++i) p = std::fma(p, r, kExpCoefficients[i]);
  p = std::fma(p, r, 1.0F);
  p = std::fma(p, r, 1.0F);
  // 2^n in two factors, so that n = 128 is reached without an infinite factor.
  const auto half = static_cast<std::uint32_t>(static_cast<std::int32_t>(n) >> 1);
  const float scale1 = std::bit_cast<float>((half + 127) << 23);
  const float scale2 = std::bit_cast<float>((n - half + 127) << 23);
  const float result = p * scale1 * scale2;
  if (x < kExpUnderflow) return 0.0F;
  if (x > kExpOverflow) return std::numeric_limits<float>::infinity();
  return result;
}

// GELU in its tanh form (Hendrycks and Gimpel 2016), g (1 + tanh z) / 2 with z = sqrt(2 / pi) (g + 0.044715
// g^3), is g / (1 + exp(-2 z)); 2 z = g (kGeluLinear + kGeluCubic g^2).
inline constexpr float kGeluLinear = 0x1.988454p+0F;
inline constexpr float kGeluCubic = 0x1.2444f2p-4F;

}  // namespace kvasir::kernels

#endif  // KVASIR_KERNELS_FLOAT_FUNCTIONS_H_
