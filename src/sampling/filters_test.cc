#include "sampling/filters.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "base/elementary.h"
#include "kvasir/error.h"
#include "sampling/row.h"

namespace kvasir {
namespace {

using Row = std::vector<double>;
using Ids = std::vector<TokenId>;

const Row kLabProbabilities{0.5, 0.25, 0.15, 0.06, 0.04};

Row log_of(const Row& probabilities) {
  Row logits;
  for (const double p : probabilities) logits.push_back(std::log(p));
  return logits;
}

// As a model would give them: rounded to float32.
Row float_log_of(const Row& probabilities) {
  Row logits;
  for (const double p : probabilities) logits.push_back(std::log(static_cast<float>(p)));
  return logits;
}

Ids kept_of(const Row& row) {
  Ids kept;
  for (std::size_t i = 0; i < row.size(); ++i) {
    if (row[i] != kDropped) kept.push_back(static_cast<TokenId>(i));
  }
  return kept;
}

Ids first_ids(int n) {
  Ids ids(static_cast<std::size_t>(n));
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

Ids top_p_keeps(Row row, double p) {
  top_p_filter(row, p);
  return kept_of(row);
}

Ids min_p_keeps(Row row, double min_p) {
  min_p_filter(row, min_p);
  return kept_of(row);
}

Ids top_k_keeps(Row row, std::int64_t k) {
  top_k_filter(row, k);
  return kept_of(row);
}

TEST(TopK, KeepsTheLargestAndTiesAtTheBoundary) {
  EXPECT_EQ(top_k_keeps(log_of(kLabProbabilities), 2), first_ids(2));
  EXPECT_EQ(top_k_keeps({1, 3, 2, 2, 0}, 2), (Ids{1, 2, 3}));
  EXPECT_EQ(top_k_keeps(Row(64, 0.5), 2), first_ids(64));
  for (const std::int64_t off : {std::int64_t{0}, std::int64_t{-1}, std::int64_t{5}, std::int64_t{9'999'999},
                                 std::numeric_limits<std::int64_t>::max()}) {
    EXPECT_EQ(top_k_keeps({1, 3, 2, 2, 0}, off), first_ids(5)) << off;
  }
}

TEST(TopK, FindsTheSameBoundaryByHeapAndBySelection) {
  std::mt19937_64 random(11);
  std::uniform_int_distribution<int> logit(0, 3000);  // with many ties
  Row row(5000);
  for (double& value : row) value = logit(random);
  Row sorted = row;
  std::sort(sorted.begin(), sorted.end(), std::greater<>());
  for (const std::int64_t k : {1, 50, 1023, 1024, 1025, 3000, 4999}) {
    Row filtered = row;
    top_k_filter(filtered, k);
    for (std::size_t i = 0; i < row.size(); ++i) {
      EXPECT_EQ(filtered[i], row[i] >= sorted[static_cast<std::size_t>(k - 1)] ? row[i] : kDropped) << k;
    }
  }
}

TEST(TopP, KeepsTheTokenThatCrossesTheThreshold) {
  for (const Row& row : {log_of(kLabProbabilities), float_log_of(kLabProbabilities)}) {
    EXPECT_EQ(top_p_keeps(row, 0.5), first_ids(1));
    EXPECT_EQ(top_p_keeps(row, 0.6), first_ids(2));
    EXPECT_EQ(top_p_keeps(row, 0.9), first_ids(3));
    EXPECT_EQ(top_p_keeps(row, static_cast<double>(0.9F)), first_ids(3));
    EXPECT_EQ(top_p_keeps(row, static_cast<double>(0.5F)), first_ids(1));
    EXPECT_EQ(top_p_keeps(row, 1e-9), first_ids(1));
    EXPECT_EQ(top_p_keeps(row, 1.0), first_ids(5));
  }
  const Row other = log_of({.5, .3, .15, .05});
  EXPECT_EQ(top_p_keeps(other, 0.6), first_ids(2));
  EXPECT_EQ(top_p_keeps(other, 0.85), first_ids(3));
  EXPECT_EQ(top_p_keeps(log_of({.4, .3, .2, .1}), 0.8), first_ids(3));
  EXPECT_EQ(top_p_keeps(other, 1.0), first_ids(4));
}

// Masses that meet p exactly on paper: rounding must not decide.
TEST(TopP, CountsAMassThatEqualsPUpToRoundingAsReached) {
  for (int n = 2; n <= 200; ++n) {
    const Row uniform(static_cast<std::size_t>(n), -3.7);
    for (int kept = 1; kept < n; ++kept) {
      ASSERT_EQ(top_p_keeps(uniform, static_cast<double>(kept) / n), first_ids(kept)) << kept << " of " << n;
    }
  }
}

TEST(TopP, AlwaysKeepsTheArgmaxAndOfEqualOnesTheFirst) {
  for (const double p : {0.0, -1.0, 5e-324, 1e-9}) {
    EXPECT_EQ(top_p_keeps(log_of({.5, .3, .15, .05}), p), (Ids{0})) << p;
    EXPECT_EQ(top_p_keeps({1, 4, 2, 4}, p), (Ids{1})) << p;
  }
}

TEST(TopP, WorksOnUnsortedRowsAndKeepsValues) {
  const Row logits = log_of(kLabProbabilities);
  const Row row{logits[3], logits[0], logits[4], logits[1], logits[2]};
  Row filtered = row;
  top_p_filter(filtered, 0.6);
  EXPECT_EQ(filtered, (Row{kDropped, row[1], kDropped, row[3], kDropped}));
}

// The definition, spelt out: everything sorted, the mass before each token summed in that order.
Row top_p_by_full_sort(const Row& row, double p) {
  const double largest = *std::max_element(row.begin(), row.end());
  double total = 0.0;
  for (const double logit : row) total += defined_exp(logit - largest);
  Ids order = kept_of(row);
  std::stable_sort(order.begin(), order.end(), [&](TokenId a, TokenId b) {
    return row[static_cast<std::size_t>(a)] > row[static_cast<std::size_t>(b)];
  });
  Row filtered(row.size(), kDropped);
  double before = 0.0;
  for (const TokenId id : order) {
    const std::size_t i = static_cast<std::size_t>(id);
    if (id != order.front() && before >= p * (1.0 - kThresholdSlack) * total) break;
    filtered[i] = row[i];
    before += defined_exp(row[i] - largest);
  }
  return filtered;
}

TEST(TopP, EqualsAFullSortOnRandomRows) {
  constexpr std::uint64_t kSeed = 5;
  std::mt19937_64 random(kSeed);
  for (int round = 0; round < 1500; ++round) {
    const std::size_t size = round % 100 == 0 ? 49152 : 1 + random() % 300;
    std::normal_distribution<double> normal(0.0, std::exp2(static_cast<double>(random() % 10) - 4));
    const bool coarse = random() % 3 == 0;  // with ties
    Row row(size);
    for (double& logit : row) {
      logit = coarse ? std::round(normal(random)) : normal(random);
      if (random() % 8 == 0) logit = kDropped;
    }
    row[random() % size] = 1.0;
    const double uniform = std::uniform_real_distribution<double>()(random);
    for (const double p : {uniform, 0.0, 0.5, 0.95, 1.0 - 1e-6 * uniform, 1.0 - 0x1p-52}) {
      Row filtered = row;
      top_p_filter(filtered, p);
      ASSERT_EQ(filtered, top_p_by_full_sort(row, p)) << "seed " << kSeed << " round " << round << " p " << p;
    }
  }
}

TEST(MinP, KeepsTokensFromAShareOfTheLargestProbability) {
  for (const Row& row : {log_of(kLabProbabilities), float_log_of(kLabProbabilities)}) {
    EXPECT_EQ(min_p_keeps(row, 0.2), first_ids(3));
    EXPECT_EQ(min_p_keeps(row, 0.0), first_ids(5));
    EXPECT_EQ(min_p_keeps(row, 1.0), first_ids(1));
    EXPECT_EQ(min_p_keeps(row, 2.0), first_ids(1));
  }
  EXPECT_EQ(min_p_keeps(Row(50, 0.3), 0.9), first_ids(50));
}

TEST(MinP, KeepsAProbabilityThatEqualsTheThresholdUpToRounding) {
  for (int n = 2; n <= 1000; ++n) {
    const double share = 1.0 / n;
    ASSERT_EQ(min_p_keeps(log_of({0.7, 0.7 * share}), share), first_ids(2)) << n;
    ASSERT_EQ(min_p_keeps(log_of({0.7, 0.7 * share * (1 - 1e-9)}), share), first_ids(1)) << n;
  }
}

TEST(Filters, ComposeOnTheRenormalisedRow) {
  Row row = log_of(kLabProbabilities);
  top_k_filter(row, 2);
  top_p_filter(row, 0.66);
  EXPECT_EQ(kept_of(row), first_ids(1));
  EXPECT_EQ(top_p_keeps(log_of(kLabProbabilities), 0.66), first_ids(2));
}

TEST(Filters, LeaveARowOfNothingAsItIs) {
  for (Row row : {Row{}, Row(5, kDropped)}) {
    const Row before = row;
    top_k_filter(row, 2);
    top_p_filter(row, 0.5);
    min_p_filter(row, 0.5);
    EXPECT_EQ(row, before);
  }
}

TEST(Filters, RefuseRowsAndThresholdsThatAreNoNumbers) {
  const double nan = std::nan("");
  for (const double bad : {nan, std::numeric_limits<double>::infinity()}) {
    Row row{1.0, bad, 2.0};
    EXPECT_THROW(top_k_filter(row, 1), Error);
    EXPECT_THROW(top_p_filter(row, 0.5), Error);
    EXPECT_THROW(min_p_filter(row, 0.5), Error);
  }
  Row row{1.0, 2.0};
  EXPECT_THROW(top_p_filter(row, nan), Error);
  EXPECT_THROW(min_p_filter(row, nan), Error);
}

}  // namespace
}  // namespace kvasir
