#include "sampling/row.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kvasir/error.h"

namespace kvasir {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(CheckedMax, FindsTheLargestAtEveryPlaceOfEveryLength) {
  for (std::size_t size = 1; size < 70; ++size) {
    for (std::size_t at = 0; at < size; ++at) {
      std::vector<float> row(size, -kInf);
      row[at] = -2.5F;
      row[(at * 7 + 1) % size] = std::max(row[(at * 7 + 1) % size], -3.0F);
      EXPECT_EQ(checked_max(row, "row"), -2.5);
    }
  }
}

TEST(CheckedMax, RefusesNanAndInfinityAtEveryPlaceAndNamesIt) {
  for (const float bad : {kInf, std::nanf(""), -std::nanf("")}) {
    for (std::size_t at = 0; at < 50; ++at) {
      std::vector<float> row(50, 1.0F);
      row[at] = bad;
      try {
        checked_max(row, "the logits");
        FAIL() << bad << " at " << at << " was accepted";
      } catch (const Error& error) {
        EXPECT_EQ(error.kind(), ErrorKind::kRuntime);
        EXPECT_NE(std::string(error.what()).find("the logits: token " + std::to_string(at) + " "),
                  std::string::npos)
            << error.what();
      }
    }
  }
}

TEST(CheckedMax, RefusesARowWithoutAnyCandidate) {
  EXPECT_THROW(checked_max(std::vector<float>(40, -kInf), "row"), Error);
  EXPECT_THROW(checked_max(std::vector<float>{}, "row"), Error);
}

TEST(CheckedMax, TakesTheLargestFiniteValues) {
  std::vector<float> row(40, std::numeric_limits<float>::max());
  EXPECT_EQ(checked_max(row, "row"), static_cast<double>(std::numeric_limits<float>::max()));
  row.assign(40, std::numeric_limits<float>::lowest());
  EXPECT_EQ(checked_max(row, "row"), static_cast<double>(std::numeric_limits<float>::lowest()));
}

TEST(SumExp, AddsInAscendingOrderAndSkipsDroppedTokens) {
  std::mt19937_64 random(3);
  std::normal_distribution<double> normal(0.0, 5.0);
  for (const std::size_t size : {1U, 2U, 255U, 256U, 257U, 1000U}) {
    std::vector<double> row(size);
    for (double& logit : row) logit = random() % 4 == 0 ? kDropped : normal(random);
    double sum = 0.0;
    for (const double logit : row) sum += logit == kDropped ? 0.0 : defined_exp(logit - 3.0);
    EXPECT_EQ(sum_exp(std::span<const double>(row), 3.0), sum);
  }
}

}  // namespace
}  // namespace kvasir
