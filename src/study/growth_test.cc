#include <gtest/gtest.h>

#include <cmath>

#include "kvasir/study.h"

namespace kvasir {
namespace {

std::vector<double> times(std::int64_t count, double constant, double linear, double quadratic) {
  std::vector<double> seconds;
  for (std::int64_t n = 1; n <= count; ++n) {
    const auto x = static_cast<double>(n);
    seconds.push_back(constant + linear * x + quadratic * x * x);
  }
  return seconds;
}

CacheCurve curve(std::vector<double> seconds) {
  CacheCurve result{8, true, std::move(seconds), {}};
  result.growth = fit_growth(result.seconds);
  return result;
}

TEST(FitGrowth, FindsTheCoefficientsOfAQuadraticCurve) {
  for (const std::int64_t count : {3, 10, 512}) {
    const auto fitted = fit_growth(times(count, 0.25, 0.003, 0.00002));
    ASSERT_TRUE(fitted.has_value());
    EXPECT_NEAR(fitted->constant, 0.25, 1e-9) << count;
    EXPECT_NEAR(fitted->linear, 0.003, 1e-9) << count;
    EXPECT_NEAR(fitted->quadratic, 0.00002, 1e-9) << count;
    EXPECT_NEAR(fitted->at(100), 0.25 + 0.3 + 0.2, 1e-5) << count;
  }
}

// The residuals of least squares are orthogonal to 1, n and n^2.
TEST(FitGrowth, LeavesResidualsOrthogonalToItsTerms) {
  std::vector<double> seconds = times(50, 1.0, 0.5, 0.01);
  for (std::size_t i = 0; i < seconds.size(); ++i) seconds[i] += (i * 7 % 11 < 4) ? 0.3 : -0.2;
  const auto fitted = fit_growth(seconds);
  ASSERT_TRUE(fitted.has_value());
  double sums[3] = {};
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    const double n = static_cast<double>(i + 1), residual = seconds[i] - fitted->at(n);
    sums[0] += residual;
    sums[1] += residual * n / 50;
    sums[2] += residual * n * n / 2500;
  }
  for (const double sum : sums) EXPECT_NEAR(sum, 0.0, 1e-9);
}

TEST(FitGrowth, NeedsThreeTimes) { EXPECT_FALSE(fit_growth(times(2, 1, 1, 1)).has_value()); }

TEST(Growth, DominantTermDependsOnTheLength) {
  const Growth growth{100.0, 1.0, 0.01};
  EXPECT_EQ(growth.dominant(99), "linear");
  EXPECT_EQ(growth.dominant(101), "quadratic");
  EXPECT_EQ((Growth{0.0, 1.0, -0.5}).dominant(10), "quadratic");
}

TEST(Crossover, IsWhereTheCachedPathBecomesFasterAndStaysSo) {
  const auto cached = curve({10, 11, 12, 13, 14});
  const auto crossover = find_crossover(cached, curve({10, 20, 11, 40, 50}), 100);
  ASSERT_TRUE(crossover.has_value());
  EXPECT_EQ(crossover->new_tokens, 4);
  EXPECT_TRUE(crossover->measured);
}

TEST(Crossover, DifferencesAsSmallAsThatOfTheFirstTokenAreNone) {
  const auto crossover = find_crossover(curve({10, 11, 12, 13}), curve({12, 13, 14.5, 16}), 100);
  ASSERT_TRUE(crossover.has_value());
  EXPECT_EQ(crossover->new_tokens, 3);
}

TEST(Crossover, ComesFromTheFitsWhereNoneWasMeasured) {
  const auto crossover = find_crossover(curve(times(20, 30, 1, 0)), curve(times(20, 0, 0, 0.05)), 100);
  ASSERT_TRUE(crossover.has_value());  // 0.05 n^2 > 30 + n from n = 36.5 on
  EXPECT_EQ(crossover->new_tokens, 37);
  EXPECT_FALSE(crossover->measured);
  EXPECT_FALSE(find_crossover(curve(times(20, 30, 1, 0)), curve(times(20, 0, 0, 0.05)), 36).has_value());
}

TEST(Crossover, NothingIsSaidOfWhatWasNotMeasured) {
  EXPECT_FALSE(find_crossover(curve(times(20, 30, 1, 0)), curve({}), 100).has_value());
  EXPECT_FALSE(find_crossover(curve({}), curve({}), 100).has_value());
}

TEST(CacheCurve, StepIsTheMedianTimeBetweenTokens) {
  EXPECT_EQ(curve({5, 6, 9, 11}).step_seconds(), 2.0);
  EXPECT_FALSE(curve({5}).step_seconds().has_value());
}

TEST(PoissonArrivals, AreThatManyASecondAndTheSameForOneSeed) {
  const std::vector<double> times = poisson_arrivals(50, 200, 7);
  EXPECT_NEAR(static_cast<double>(times.size()), 10000, 5 * std::sqrt(10000));
  for (std::size_t i = 1; i < times.size(); ++i) ASSERT_LT(times[i - 1], times[i]);
  EXPECT_GT(times.front(), 0);
  EXPECT_LT(times.back(), 200);
  EXPECT_EQ(times, poisson_arrivals(50, 200, 7));
  EXPECT_NE(times, poisson_arrivals(50, 200, 8));
  // Of exponential gaps a share 1/e is longer than their mean.
  std::int64_t longer = 0;
  for (std::size_t i = 1; i < times.size(); ++i) longer += times[i] - times[i - 1] > 1.0 / 50 ? 1 : 0;
  EXPECT_NEAR(static_cast<double>(longer) / 10000, std::exp(-1.0), 0.03);
}

TEST(SharedBlocks, WholeBlocksOfTheCommonPromptAreThereOnce) {
  EXPECT_EQ(shared_blocks_expected(1, 32, 8), 3);
  EXPECT_EQ(shared_blocks_expected(2, 32, 8), 4);  // the lab's two prompts: 2 blocks in common
  EXPECT_EQ(shared_blocks_expected(4, 31, 1), 5);  // one in common, one of each one's own
  EXPECT_EQ(shared_blocks_expected(3, 15, 1), 3);
}

}  // namespace
}  // namespace kvasir
