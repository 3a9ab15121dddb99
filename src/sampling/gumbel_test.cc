#include "sampling/gumbel.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <random>
#include <span>
#include <vector>

#include "base/philox.h"
#include "kvasir/sampling.h"
#include "sampling/row.h"

namespace kvasir {
namespace {

constexpr std::uint64_t kSeed = 20261130;

TEST(GumbelNoise, IsFiniteAtTheEndsOfItsRange) {
  for (std::uint64_t step = 0; step < 100'000; ++step) {
    ASSERT_TRUE(std::isfinite(gumbel_from_bits(step)));
    ASSERT_TRUE(std::isfinite(gumbel_from_bits(kLargestBits - step)));
  }
  EXPECT_NEAR(gumbel_from_bits(0), -std::log(53 * std::log(2.0)), 1e-14);                  // u = 2^-53
  EXPECT_NEAR(gumbel_from_bits(kLargestBits), 53 * std::log(2.0), 1e-13);                  // u = 1 - 2^-53
  EXPECT_NEAR(gumbel_from_bits(std::uint64_t{1} << 51), -std::log(std::log(2.0)), 1e-14);  // u = 1/2
}

TEST(GumbelNoise, RisesWithItsBits) {
  for (int shift = 0; shift < 52; ++shift) {
    const std::uint64_t bits = std::uint64_t{1} << shift;
    EXPECT_LE(gumbel_from_bits(bits - 1), gumbel_from_bits(bits));
    EXPECT_LE(gumbel_from_bits(kLargestBits - bits), gumbel_from_bits(kLargestBits - bits + 1));
  }
}

TEST(GumbelNoise, IsMadeOfTheUpperBitsOfOnePhiloxBlock) {
  const auto words = philox4x32({0x89abcdef, 0x01234567, 4711, 3}, {0x76543210, 0xfedcba98});
  const std::uint64_t bits = ((std::uint64_t{words[0]} << 32) + words[1]) / 4096;
  const double u = (static_cast<double>(bits) + 0.5) / 4503599627370496.0;
  EXPECT_EQ(gumbel_noise(0xfedcba9876543210, 3, 0x0123456789abcdef, 4711), -defined_log(-defined_log(u)));
}

TEST(GumbelNoise, OfManyTokensEqualsThatOfEach) {
  std::mt19937_64 random(kSeed);
  for (int round = 0; round < 200; ++round) {
    const NoiseSource source{random(), static_cast<std::uint32_t>(random()), random()};
    std::vector<TokenId> tokens(random() % 20);
    for (TokenId& token : tokens) token = static_cast<TokenId>(random() >> 33);
    std::vector<std::uint64_t> bits(tokens.size());
    noise_bits(source, tokens, bits);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      EXPECT_LE(bits[i], kLargestBits);
      EXPECT_EQ(gumbel_from_bits(bits[i]),
                gumbel_noise(source.seed, source.choice, source.position, tokens[i]));
    }
  }
}

TEST(GumbelBound, IsNeverBelowTheNoise) {
  std::mt19937_64 random(kSeed);
  for (int shift = 0; shift <= 52; ++shift) {
    for (int i = 0; i < 2000; ++i) {
      const std::uint64_t distance = shift == 0 ? 0 : (random() >> (64 - shift)) & kLargestBits;
      for (const std::uint64_t bits : {distance, kLargestBits - distance}) {
        ASSERT_GE(gumbel_bound(bits), gumbel_from_bits(bits)) << bits;
      }
    }
    // Where the exponent changes.
    const std::uint64_t edge = shift == 52 ? kLargestBits : std::uint64_t{1} << shift;
    for (const std::uint64_t bits : {kLargestBits - edge, kLargestBits - edge + 1}) {
      ASSERT_GE(gumbel_bound(bits), gumbel_from_bits(bits)) << bits;
    }
  }
}

TokenId draw_without_skipping(const std::vector<double>& row, const NoiseSource& source) {
  double best = kDropped;
  TokenId winner = -1;
  for (std::size_t i = 0; i < row.size(); ++i) {
    if (row[i] == kDropped) continue;
    const auto token = static_cast<TokenId>(i);
    const double score = row[i] + gumbel_noise(source.seed, source.choice, source.position, token);
    if (score > best) {
      best = score;
      winner = token;
    }
  }
  return winner;
}

TEST(DrawToken, GivesWhatScoringEveryTokenGives) {
  std::mt19937_64 random(kSeed);
  for (int round = 0; round < 6000; ++round) {
    std::normal_distribution<double> normal(0.0, std::exp2(static_cast<double>(random() % 10) - 3));
    std::vector<double> row(1 + random() % 600);
    for (double& logit : row) logit = random() % 5 == 0 ? kDropped : normal(random);
    row[random() % row.size()] = 0.0;
    const NoiseSource source{random(), static_cast<std::uint32_t>(random() % 4), random()};
    const TokenId winner = draw_without_skipping(row, source);
    const double largest = *std::max_element(row.begin(), row.end());
    ASSERT_EQ(draw_token(row, first_of(std::span<const double>(row), largest), source), winner)
        << "seed " << kSeed << " round " << round;
    // From any other start, too; the winner itself is the hardest to get past.
    ASSERT_EQ(draw_token(row, winner, source), winner) << "seed " << kSeed << " round " << round;
  }
}

TEST(DrawToken, BreaksTiesByTheLowestId) {
  // Logits so large that the noise is rounded away.
  const std::vector<double> row{0.0, 1e300, 1e300, 1e300};
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    for (const TokenId start : {1, 2, 3}) EXPECT_EQ(draw_token(row, start, {seed, 0, 0}), 1);
  }
}

// Pearson's statistic of observed counts against expected ones.
double chi_square(std::span<const std::int64_t> counts, std::span<const double> expected) {
  double sum = 0.0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const double difference = static_cast<double>(counts[i]) - expected[i];
    sum += difference * difference / expected[i];
  }
  return sum;
}

// The 1 - 1e-6 quantile of chi-square (Wilson and Hilferty's approximation; z = 4.753).
double chi_square_limit(double degrees) {
  const double v = 2.0 / (9.0 * degrees);
  return degrees * std::pow(1.0 - v + 4.753 * std::sqrt(v), 3.0);
}

const std::vector<double> kWeights{100, 60, 40, 25, 16, 10, 6, 4, 2.5, 1.6, 1, 0.5};

std::vector<double> logits_of_weights() {
  std::vector<double> row;
  for (const double weight : kWeights) row.push_back(std::log(weight / kWeights[0]));
  return row;
}

double total_weight() {
  double total = 0.0;
  for (const double weight : kWeights) total += weight;
  return total;
}

TEST(DrawToken, FollowsTheSoftmaxOverTenMillionDraws) {
  constexpr std::uint64_t kDraws = 10'000'000;
  const std::vector<double> row = logits_of_weights();
  std::vector<std::int64_t> counts(row.size());
  for (std::uint64_t i = 0; i < kDraws; ++i) {
    ++counts[static_cast<std::size_t>(draw_token(row, 0, {kSeed + i / 1000, 0, i % 1000}))];
  }
  std::vector<double> expected;
  for (const double weight : kWeights)
    expected.push_back(static_cast<double>(kDraws) * weight / total_weight());
  const double statistic = chi_square(counts, expected);
  std::printf("chi-square %.2f with %zu degrees of freedom\n", statistic, row.size() - 1);
  EXPECT_LT(statistic, chi_square_limit(static_cast<double>(row.size() - 1)));
}

// Pairs of draws from neighbouring sources must fill the product of both distributions.
template <class Other>
void expect_independent(Other other) {
  constexpr std::uint64_t kDraws = 400'000;
  std::vector<double> row = logits_of_weights();
  row.resize(6);
  double total = 0.0;
  for (std::size_t i = 0; i < row.size(); ++i) total += kWeights[i];
  std::vector<std::int64_t> counts(row.size() * row.size());
  std::vector<double> expected(counts.size());
  for (std::uint64_t i = 0; i < kDraws; ++i) {
    const NoiseSource source{kSeed, 0, 2 * i};
    const auto a = static_cast<std::size_t>(draw_token(row, 0, source));
    const auto b = static_cast<std::size_t>(draw_token(row, 0, other(source)));
    ++counts[a * row.size() + b];
  }
  for (std::size_t a = 0; a < row.size(); ++a) {
    for (std::size_t b = 0; b < row.size(); ++b) {
      expected[a * row.size() + b] =
          static_cast<double>(kDraws) * kWeights[a] * kWeights[b] / (total * total);
    }
  }
  EXPECT_LT(chi_square(counts, expected), chi_square_limit(static_cast<double>(counts.size() - 1)));
}

TEST(DrawToken, IsIndependentBetweenPositionsChoicesAndSeeds) {
  expect_independent([](NoiseSource s) { return NoiseSource{s.seed, s.choice, s.position + 1}; });
  expect_independent([](NoiseSource s) { return NoiseSource{s.seed, s.choice, s.position + (1ULL << 32)}; });
  expect_independent([](NoiseSource s) { return NoiseSource{s.seed, s.choice + 1, s.position}; });
  expect_independent([](NoiseSource s) { return NoiseSource{s.seed + 1, s.choice, s.position}; });
  expect_independent([](NoiseSource s) { return NoiseSource{s.seed + (1ULL << 32), s.choice, s.position}; });
}

}  // namespace
}  // namespace kvasir
