// exp, log, sin, cos in double precision from add, subtract, multiply, divide and integer operations alone
// (no fma, no libm), so that their bits are the same on every machine and under every compiler flag that we
// allow.
//
// Free of branches (special values by selects), so that a compiler can vectorise a loop over them. Always
// inlined: an out-of-line copy compiled for a wider instruction set could otherwise be linked into plain
// code.
//
// The polynomials interpolate at Chebyshev nodes (computed with 250 bits, then rounded). Errors measured
// against 80-bit libm by elementary_test.
#ifndef KVASIR_BASE_ELEMENTARY_H_
#define KVASIR_BASE_ELEMENTARY_H_

#include <bit>
#include <cstdint>
#include <limits>
#include <span>

namespace kvasir {

// e^x. Overflow gives +inf, underflow below 2^-1022 gives +0 (no subnormal results); NaN gives NaN.
// Error below 0.75 ulp.
double defined_exp(double x);
// Natural logarithm. 0 gives -inf, negative gives NaN, +inf gives +inf. Subnormal arguments are handled.
// Error below 0.95 ulp.
double defined_log(double x);
// For |x| <= 2^30 (positions times frequencies): absolute error below 1e-16. Larger, infinite or NaN gives
// NaN.
double defined_sin(double x);
double defined_cos(double x);

// x[i] = defined_exp(x[i]), with the widest vectors that pay on this machine; the same bits whichever these
// are.
void defined_exp_all(std::span<double> x);

namespace elementary_internal {

// Adding 1.5 * 2^52 rounds a number below 2^51 to an integer (nearest even) and leaves it in the low mantissa
// bits.
inline constexpr double kRound = 0x1.8p52;
// ln 2 = high + low; high has 32 bits, so that its product with any exponent is exact.
inline constexpr double kLn2High = 0x1.62e42fee00000p-1;
inline constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
inline constexpr double kInfinity = std::numeric_limits<double>::infinity();
inline constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// condition ? a : b by masks. Written with ?: a compiler that must keep floating-point traps in order (the
// default) makes branches of it, and no vector code.
[[gnu::always_inline]] inline double select(bool condition, double a, double b) {
  const std::uint64_t mask = std::uint64_t{0} - static_cast<std::uint64_t>(condition);
  return std::bit_cast<double>((std::bit_cast<std::uint64_t>(a) & mask) |
                               (std::bit_cast<std::uint64_t>(b) & ~mask));
}

// sin(x + quarter_turns * pi/2).
[[gnu::always_inline]] inline double sin_of_turned(double x, std::uint64_t quarter_turns) {
  // x = n * pi/2 + r. pi/2 in 23 + 23 + 53 bits: n has at most 30 bits, so the first two products are exact,
  // and so are both differences (each is a multiple of its operands' last place and small enough). The last
  // one is not: r_low keeps what it loses.
  constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;
  constexpr double kHalfPi1 = 0x1.921fb4p+0, kHalfPi2 = 0x1.4442dp-24, kHalfPi3 = 0x1.8469898cc5170p-48;
  const double shifted = x * kTwoOverPi + kRound;
  const double n = shifted - kRound;
  const std::uint64_t quadrant = std::bit_cast<std::uint64_t>(shifted) + quarter_turns;
  const double rest = (x - n * kHalfPi1) - n * kHalfPi2;
  const double correction = n * kHalfPi3;
  const double r = rest - correction;
  const double r_low = (rest - r) - correction;
  const double z = r * r;

  // cos r = 1 - r^2/2 + r^4 C(r^2), with C to 2e-18. 1 - r^2/2 is split into its rounding and what that lost.
  const double c =
      0x1.5555555555555p-5 +
      z * (-0x1.6c16c16c16966p-10 +
           z * (0x1.a01a019f4e867p-16 +
                z * (-0x1.27e4fa17a41b4p-22 + z * (0x1.1eeb68b109173p-29 + z * -0x1.907d7aebd5e3dp-37))));
  const double half = 0.5 * z;
  const double head = 1.0 - half;
  const double cosine = head + (((1.0 - head) - half) + (z * z * c - r * r_low));

  // sin r = r + r^3 S(r^2), with S to 2e-17; r_low enters times cos r (its leading terms).
  const double s =
      -0x1.5555555555555p-3 +
      z * (0x1.1111111110bb1p-7 +
           z * (-0x1.a01a019e8357dp-13 +
                z * (0x1.71de37961e4c6p-19 + z * (-0x1.ae600a926c89ap-26 + z * 0x1.5e0af186af739p-33))));
  const double sine = r + (r * z * s + r_low * head);

  const double magnitude = select((quadrant & 1) != 0, cosine, sine);
  const std::uint64_t sign = (quadrant & 2) << 62;
  const double value = std::bit_cast<double>(std::bit_cast<std::uint64_t>(magnitude) ^ sign);
  return select((x >= -0x1p30) & (x <= 0x1p30), value, kNan);
}

}  // namespace elementary_internal

[[gnu::always_inline]] inline double defined_exp(double x) {
  using namespace elementary_internal;
  constexpr double kLog2E = 0x1.71547652b82fep+0;
  constexpr double kLargest = 0x1.62e42fefa39efp+9;    // the largest double with e^x < 2^1024
  constexpr double kSmallest = -0x1.6232bdd7abcd2p+9;  // the smallest double with e^x >= 2^-1022

  // x = k ln 2 + (high - low), with |high - low| below 0.3467; high is exact (k * kLn2High is, and the
  // difference of two such close numbers).
  const double clamped = select(x > 710.0, 710.0, select(x < -709.0, -709.0, x));
  const double shifted = clamped * kLog2E + kRound;
  const double k = shifted - kRound;
  const double high = clamped - k * kLn2High;
  const double low = k * kLn2Low;
  const double r = high - low;

  // e^r = 1 + r + r^2 Q(r), with Q to 1.4e-18, its terms by Estrin's scheme.
  const double r2 = r * r;
  const double r4 = r2 * r2;
  const double q01 = 0x1p-1 + r * 0x1.5555555555557p-3;
  const double q23 = 0x1.5555555555556p-5 + r * 0x1.11111111100dcp-7;
  const double q45 = 0x1.6c16c16c162d4p-10 + r * 0x1.a01a01abe7fe1p-13;
  const double q67 = 0x1.a01a01a6d889cp-16 + r * 0x1.71de0231960ebp-19;
  const double q8910 = 0x1.27e4db646b17ep-22 + r * 0x1.af4de97ca4194p-26 + r2 * 0x1.1f730349868cep-29;
  const double q = (q01 + r2 * q23) + r4 * ((q45 + r2 * q67) + r4 * q8910);
  // 1 + high is split into its rounding and what that lost, which leaves little more than the final rounding.
  const double head = 1.0 + high;
  const double mantissa = head + ((high - (head - 1.0)) + (r2 * q - low));

  // Times 2^k: k, in the low bits of `shifted`, is added to the exponent.
  const std::uint64_t scaled =
      std::bit_cast<std::uint64_t>(mantissa) + (std::bit_cast<std::uint64_t>(shifted) << 52);
  const double finite = std::bit_cast<double>(scaled);
  return select(x <= kLargest, select(x >= kSmallest, finite, 0.0), select(x == x, kInfinity, kNan));
}

[[gnu::always_inline]] inline double defined_log(double x) {
  using namespace elementary_internal;
  constexpr std::uint64_t kSqrtHalfBits = 0x3fe6a09e667f3bcd;

  // x = 2^k m with m in [sqrt(1/2), sqrt(2)), f = m - 1 (exact).
  const bool subnormal = x < 0x1p-1022;
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(x * select(subnormal, 0x1p54, 1.0));
  const std::uint64_t offset = bits - kSqrtHalfBits;
  const double m = std::bit_cast<double>(bits - (offset & 0xfff0000000000000));
  const std::uint64_t exponent = static_cast<std::uint64_t>(static_cast<std::int64_t>(offset) >> 52);
  const double k = (std::bit_cast<double>(std::bit_cast<std::uint64_t>(kRound) + exponent) - kRound) -
                   select(subnormal, 54.0, 0.0);
  const double f = m - 1.0;

  // With s = f / (2 + f): ln(1 + f) = 2 atanh(s) = 2s + s R, R = 2 s^2/3 + 2 s^4/5 + ... (as a polynomial in
  // z = s^2, to 3.2e-16 z); and 2s = f - s f = f - (h - s h) with h = f^2 / 2, which needs no exact s.
  const double s = f / (2.0 + f);
  const double z = s * s;
  const double z2 = z * z;
  const double p01 = 0x1.5555555555558p-1 + z * 0x1.99999999952d7p-2;
  const double p23 = 0x1.2492492df281ap-2 + z * 0x1.c71c62e3f11e6p-3;
  const double p456 = 0x1.7462b51cb66b1p-3 + z * 0x1.39fe51a7c18f9p-3 + z2 * 0x1.2b5900de53b32p-3;
  const double series = z * (p01 + z2 * (p23 + z2 * p456));
  const double h = 0.5 * f * f;
  const double tail = (s * (h + series) - h) + k * kLn2Low;

  // k ln 2 + f is split into its rounding and what that lost (exact: |k ln 2| > |f| or k = 0).
  const double whole = k * kLn2High;
  const double head = whole + f;
  const double finite = head + ((f - (head - whole)) + tail);
  const double not_positive = select(x == 0.0, -kInfinity, kNan);
  return select(x > 0.0, select(x < kInfinity, finite, kInfinity), not_positive);
}

[[gnu::always_inline]] inline double defined_sin(double x) {
  return elementary_internal::sin_of_turned(x, 0);
}

[[gnu::always_inline]] inline double defined_cos(double x) {
  return elementary_internal::sin_of_turned(x, 1);
}

}  // namespace kvasir

#endif  // KVASIR_BASE_ELEMENTARY_H_
