#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "kvasir/error.h"
#include "kvasir/sampling.h"

namespace kvasir {
namespace {

TEST(Logprobs, OfAKnownRow) {
  const std::vector<float> row{1, 0, -1, -2};
  const Logprobs logprobs = logprobs_of(row, 2, 4);
  EXPECT_NEAR(logprobs.chosen, -2.440190, 1e-6);
  ASSERT_EQ(logprobs.top.size(), 4U);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(logprobs.top[static_cast<std::size_t>(i)].first, i);
    EXPECT_NEAR(logprobs.top[static_cast<std::size_t>(i)].second, -0.440190 - i, 1e-6);
  }
}

TEST(Logprobs, GiveTheChosenTokenOutsideTheTopList) {
  const std::vector<float> row{1, 0, -1, -2};
  EXPECT_NEAR(logprobs_of(row, 3, 0).chosen, -3.440190, 1e-6);
  EXPECT_TRUE(logprobs_of(row, 3, 0).top.empty());
  EXPECT_EQ(logprobs_of(row, 3, 100).top.size(), 4U);
}

TEST(Logprobs, OrderEqualOnesById) {
  const std::vector<float> row{0, 5, 2, 5, 2, 2};
  const Logprobs logprobs = logprobs_of(row, 0, 4);
  std::vector<TokenId> ids;
  for (const auto& [id, value] : logprobs.top) ids.push_back(id);
  EXPECT_EQ(ids, (std::vector<TokenId>{1, 3, 2, 4}));
}

TEST(Logprobs, EqualLogSoftmaxInExtendedPrecision) {
  constexpr std::uint64_t kSeed = 17;
  std::mt19937_64 random(kSeed);
  for (int round = 0; round < 60; ++round) {
    std::normal_distribution<float> normal(static_cast<float>(round) - 30.0F,
                                           0.1F + static_cast<float>(round % 7));
    std::vector<float> row(1 + random() % 5000);
    for (float& logit : row) logit = normal(random);
    row[random() % row.size()] = -std::numeric_limits<float>::infinity();
    row.push_back(1.0F);
    long double sum = 0;
    for (const float logit : row) sum += std::exp(static_cast<long double>(logit));
    const long double log_sum = std::log(sum);
    EXPECT_NEAR(log_sum_exp(row), static_cast<double>(log_sum), 1e-12) << "seed " << kSeed;
    for (int i = 0; i < 5; ++i) {
      const std::size_t id = random() % row.size();
      const double expected = static_cast<double>(static_cast<long double>(row[id]) - log_sum);
      const double got = logprobs_of(row, static_cast<TokenId>(id), 0).chosen;
      if (std::isinf(expected)) {
        EXPECT_EQ(got, expected);
      } else {
        EXPECT_NEAR(got, expected, 1e-12) << "seed " << kSeed;
      }
    }
  }
}

TEST(Logprobs, RefuseWhatHasNone) {
  const std::vector<float> row{1, 0};
  EXPECT_THROW(logprobs_of(row, 2, 1), Error);
  EXPECT_THROW(logprobs_of(row, -1, 1), Error);
  EXPECT_THROW(logprobs_of(std::vector<float>{1, std::nanf("")}, 0, 1), Error);
  EXPECT_THROW(log_sum_exp(std::vector<float>(3, -std::numeric_limits<float>::infinity())), Error);
}

}  // namespace
}  // namespace kvasir
