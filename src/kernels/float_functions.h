// Constants of the float32 exponential, shared by the scalar definition and the vector kernels.
//
// e^x = 2^n * e^r with n = x / ln 2 rounded to nearest even and r = x - n ln 2 in [-0.347, 0.347], where ln 2
// is split so that n * kLn2High is exact for |n| < 2^9. e^r is its Taylor polynomial of degree 7: the first
// term left out is below 0.347^8 / 8! = 5.2e-9, a tenth of an ulp.
#ifndef KVASIR_KERNELS_FLOAT_FUNCTIONS_H_
#define KVASIR_KERNELS_FLOAT_FUNCTIONS_H_

#include <cstdint>

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

}  // namespace kvasir::kernels

#endif  // KVASIR_KERNELS_FLOAT_FUNCTIONS_H_
