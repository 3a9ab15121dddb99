#include "base/elementary.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <numbers>
#include <random>
#include <utility>
#include <vector>

namespace kvasir {
namespace {

static_assert(std::numeric_limits<long double>::digits >= 64, "the oracle needs the 80-bit type of x86");

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr std::uint64_t kSeed = 20261130;
constexpr int kArguments = 1'000'000;  // per function and range

// Error in units of the last place of the correctly rounded result.
double ulps(double got, long double exact) {
  const double rounded = static_cast<double>(exact);
  const double ulp = std::nextafter(std::abs(rounded), kInf) - std::abs(rounded);
  return static_cast<double>(std::abs(got - exact) / ulp);
}

template <class Function, class Oracle, class Draw>
double worst_ulps(Function function, Oracle oracle, Draw draw) {
  double worst = 0;
  double at = 0;
  for (int i = 0; i < kArguments; ++i) {
    const double x = draw();
    const double error = ulps(function(x), oracle(static_cast<long double>(x)));
    if (!(error <= worst)) {
      worst = error;
      at = x;
    }
  }
  std::printf("seed %llu: worst error %.4f ulp, at %a\n", static_cast<unsigned long long>(kSeed), worst, at);
  return worst;
}

TEST(DefinedExp, StaysWithinItsErrorOverTheWholeRange) {
  std::mt19937_64 random(kSeed);
  const auto exp_of = [](double x) { return defined_exp(x); };
  const auto oracle = [](long double x) { return std::exp(x); };
  for (const auto& [low, high] : {std::pair{-708.39, 709.78}, {-40.0, 0.0}, {-1.0, 1.0}, {-1e-3, 1e-3}}) {
    std::uniform_real_distribution<double> uniform(low, high);
    EXPECT_LT(worst_ulps(exp_of, oracle, [&] { return uniform(random); }), 0.75);
  }
}

TEST(DefinedExp, HandlesTheEndsOfItsRange) {
  EXPECT_EQ(defined_exp(0.0), 1.0);
  EXPECT_EQ(defined_exp(-0.0), 1.0);
  EXPECT_EQ(defined_exp(kInf), kInf);
  EXPECT_EQ(std::bit_cast<std::uint64_t>(defined_exp(-kInf)), 0U);
  EXPECT_TRUE(std::isnan(defined_exp(std::nan(""))));
  EXPECT_EQ(defined_exp(1e308), kInf);
  EXPECT_EQ(defined_exp(-1e308), 0.0);
  EXPECT_EQ(defined_exp(5e-324), 1.0);

  const double largest = 0x1.62e42fefa39efp+9;
  EXPECT_LT(ulps(defined_exp(largest), std::exp(static_cast<long double>(largest))), 0.75);
  EXPECT_EQ(defined_exp(std::nextafter(largest, kInf)), kInf);
  const double smallest = -0x1.6232bdd7abcd2p+9;
  EXPECT_LT(ulps(defined_exp(smallest), std::exp(static_cast<long double>(smallest))), 0.75);
  EXPECT_GE(defined_exp(smallest), 0x1p-1022);
  EXPECT_EQ(defined_exp(std::nextafter(smallest, -kInf)), 0.0);
}

TEST(DefinedExp, OfAWholeArrayHasTheSameBits) {
  std::mt19937_64 random(kSeed);
  std::uniform_int_distribution<std::uint64_t> patterns;
  std::uniform_real_distribution<double> uniform(-750, 750);
  for (const std::size_t size : {0U, 1U, 3U, 7U, 64U, 1001U}) {
    std::vector<double> x(size);
    for (double& value : x)
      value = random() % 4 == 0 ? std::bit_cast<double>(patterns(random)) : uniform(random);
    std::vector<double> all = x;
    defined_exp_all(all);
    for (std::size_t i = 0; i < size; ++i) {
      EXPECT_EQ(std::bit_cast<std::uint64_t>(all[i]), std::bit_cast<std::uint64_t>(defined_exp(x[i])))
          << x[i];
    }
  }
}

TEST(DefinedLog, StaysWithinItsErrorOverTheWholeRange) {
  std::mt19937_64 random(kSeed);
  const auto log_of = [](double x) { return defined_log(x); };
  const auto oracle = [](long double x) { return std::log(x); };
  // Every exponent, subnormal numbers too: all bit patterns from the smallest number to the largest.
  std::uniform_int_distribution<std::uint64_t> patterns(1, 0x7fefffffffffffff);
  EXPECT_LT(worst_ulps(log_of, oracle, [&] { return std::bit_cast<double>(patterns(random)); }), 0.95);
  std::uniform_int_distribution<std::uint64_t> subnormals(1, 0x000fffffffffffff);
  EXPECT_LT(worst_ulps(log_of, oracle, [&] { return std::bit_cast<double>(subnormals(random)); }), 0.95);
  for (const auto& [low, high] : {std::pair{0.0, 1.0}, {0.6, 1.6}, {0.999, 1.001}, {1.0, 1.0 + 1e-9}}) {
    std::uniform_real_distribution<double> uniform(low, high);
    EXPECT_LT(worst_ulps(log_of, oracle, [&] { return uniform(random); }), 0.95);
  }
}

TEST(DefinedLog, HandlesTheEndsOfItsRange) {
  EXPECT_EQ(std::bit_cast<std::uint64_t>(defined_log(1.0)), 0U);
  EXPECT_EQ(defined_log(0.0), -kInf);
  EXPECT_EQ(defined_log(-0.0), -kInf);
  EXPECT_EQ(defined_log(kInf), kInf);
  EXPECT_TRUE(std::isnan(defined_log(-1.0)));
  EXPECT_TRUE(std::isnan(defined_log(-5e-324)));
  EXPECT_TRUE(std::isnan(defined_log(-kInf)));
  EXPECT_TRUE(std::isnan(defined_log(std::nan(""))));
  for (const double x :
       {5e-324, 0x1p-1022, std::nextafter(0x1p-1022, 0.0), std::numeric_limits<double>::max(), 1 - 0x1p-53,
        1 + 0x1p-52, 0x1.6a09e667f3bcdp-1, 0x1.6a09e667f3bccp-1, 0x1p-53}) {
    EXPECT_LT(ulps(defined_log(x), std::log(static_cast<long double>(x))), 0.95) << x;
  }
}

double worst_absolute_error_of_sin_and_cos(double x) {
  const long double exact = x;
  return static_cast<double>(
      std::max(std::abs(defined_sin(x) - std::sin(exact)), std::abs(defined_cos(x) - std::cos(exact))));
}

TEST(DefinedSinCos, StayWithinTheirErrorUpToTwoToTheThirty) {
  std::mt19937_64 random(kSeed);
  double worst = 0;
  for (const double range : {1e-3, 1.0, 10.0, 1e4, 1e6, 0x1p30}) {
    std::uniform_real_distribution<double> uniform(-range, range);
    for (int i = 0; i < kArguments / 4; ++i) {
      worst = std::max(worst, worst_absolute_error_of_sin_and_cos(uniform(random)));
    }
  }
  std::printf("seed %llu: worst error %.3g\n", static_cast<unsigned long long>(kSeed), worst);
  EXPECT_LT(worst, 1e-16);
}

// Next to multiples of pi/2, where range reduction loses digits first, and pi/4, where the quadrant changes.
TEST(DefinedSinCos, StayWithinTheirErrorNearMultiplesOfAQuarterPi) {
  std::mt19937_64 random(kSeed);
  std::uniform_int_distribution<std::int64_t> multiples(-(std::int64_t{1} << 30), std::int64_t{1} << 30);
  double worst = 0;
  for (int i = 0; i < kArguments / 4; ++i) {
    const double x = static_cast<double>(static_cast<long double>(multiples(random)) *
                                         (std::numbers::pi_v<long double> / 4));
    for (const double near : {x, std::nextafter(x, kInf), std::nextafter(x, -kInf)}) {
      worst = std::max(worst, worst_absolute_error_of_sin_and_cos(near));
    }
  }
  std::printf("seed %llu: worst error %.3g\n", static_cast<unsigned long long>(kSeed), worst);
  EXPECT_LT(worst, 1e-16);
}

TEST(DefinedSinCos, HandleTheEndsOfTheirRange) {
  EXPECT_EQ(defined_sin(0.0), 0.0);
  EXPECT_EQ(defined_cos(0.0), 1.0);
  EXPECT_EQ(defined_sin(5e-324), 5e-324);
  EXPECT_LT(worst_absolute_error_of_sin_and_cos(0x1p30), 1e-16);
  EXPECT_LT(worst_absolute_error_of_sin_and_cos(-0x1p30), 1e-16);
  for (const double x : {std::nextafter(0x1p30, kInf), -1e300, kInf, -kInf, std::nan("")}) {
    EXPECT_TRUE(std::isnan(defined_sin(x))) << x;
    EXPECT_TRUE(std::isnan(defined_cos(x))) << x;
  }
}

}  // namespace
}  // namespace kvasir
