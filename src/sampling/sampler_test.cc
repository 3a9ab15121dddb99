#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "kvasir/error.h"
#include "kvasir/sampling.h"

namespace kvasir {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::nanf("");
using Logits = std::vector<float>;
using Ids = std::vector<TokenId>;

SamplingParams params_with(const std::function<void(SamplingParams&)>& set) {
  SamplingParams params;
  set(params);
  return params;
}

Sampler sampler_for(const Logits& logits, SamplingParams params) {
  return Sampler(std::move(params), static_cast<std::int32_t>(logits.size()));
}

Ids tokens_at(const Logits& logits, const SamplingParams& params, std::uint64_t positions) {
  Sampler sampler = sampler_for(logits, params);
  Ids tokens;
  for (std::uint64_t position = 0; position < positions; ++position) {
    tokens.push_back(sampler.sample(logits, {}, {}, position));
  }
  return tokens;
}

Ids kept_by(const Logits& logits, const SamplingParams& params) {
  const std::vector<double> probabilities = sampler_for(logits, params).probabilities(logits, {}, {});
  Ids kept;
  for (std::size_t i = 0; i < probabilities.size(); ++i) {
    if (probabilities[i] > 0) kept.push_back(static_cast<TokenId>(i));
  }
  return kept;
}

Logits random_logits(std::size_t vocab, std::uint64_t seed, float spread = 2.0F) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0F, spread);
  Logits logits(vocab);
  for (float& logit : logits) logit = normal(random);
  return logits;
}

TEST(Sampler, TempersBeforeItTruncates) {
  EXPECT_EQ(kept_by({3, 2, 1}, params_with([](auto& p) { p.temperature = 0.5, p.top_p = 0.8; })), (Ids{0}));
  EXPECT_EQ(kept_by({4, 2, 0}, params_with([](auto& p) { p.temperature = 2, p.min_p = 0.15; })), (Ids{0, 1}));
  // At temperature 1 the order makes no difference.
  EXPECT_EQ(kept_by({3, 2, 1}, params_with([](auto& p) { p.top_p = 0.8; })), (Ids{0, 1}));
  EXPECT_EQ(kept_by({4, 2, 0}, params_with([](auto& p) { p.min_p = 0.15; })), (Ids{0}));
}

TEST(Sampler, IsGreedyAtTemperatureZeroWithTheLowestIdOnTies) {
  EXPECT_EQ(tokens_at(Logits(64, 0.5F), params_with([](auto& p) { p.temperature = 0; }), 3), (Ids{0, 0, 0}));
  const auto filters_ignored =
      params_with([](auto& p) { p.temperature = 0, p.top_k = 1, p.top_p = 0, p.min_p = 1; });
  EXPECT_EQ(tokens_at({1, 5, 2, 5}, filters_ignored, 2), (Ids{1, 1}));
  Sampler penalised =
      sampler_for({2, 1.9F}, params_with([](auto& p) { p.temperature = 0, p.presence_penalty = 1; }));
  EXPECT_EQ(penalised.sample(Logits{2, 1.9F}, {}, Ids{0}, 0), 1);
  EXPECT_EQ(penalised.sample(Logits{2, 1.9F}, Ids{0}, {}, 0), 0);
}

TEST(Sampler, TreatsAnyLargeTopKAsOff) {
  const Logits logits = random_logits(64, 1);
  const Ids off = tokens_at(logits, params_with([](auto& p) { p.seed = 3; }), 200);
  for (const std::int64_t k : {9'999'999, 64}) {
    EXPECT_EQ(tokens_at(logits, params_with([&](auto& p) { p.seed = 3, p.top_k = k; }), 200), off);
  }
}

TEST(Sampler, IsGreedyWhenOneTokenIsLeft) {
  const Logits logits = random_logits(1000, 2);
  const Ids greedy = tokens_at(logits, params_with([](auto& p) { p.temperature = 0; }), 50);
  EXPECT_EQ(tokens_at(logits, params_with([](auto& p) { p.temperature = 5, p.top_k = 1; }), 50), greedy);
  EXPECT_EQ(tokens_at(logits, params_with([](auto& p) { p.temperature = 5, p.top_p = 0; }), 50), greedy);
  EXPECT_EQ(tokens_at(logits, params_with([](auto& p) { p.temperature = 5, p.min_p = 1; }), 50), greedy);
}

TEST(Sampler, SurvivesTheSmallestAndLargestTemperatures) {
  for (const Logits& logits : {Logits{20, 19.5F, -100}, Logits{20, 19.5F, -kInf}, Logits{3e38F, 0, -3e38F}}) {
    for (const double temperature : {1e-4, 3e-4, 1e-30, 1e-45, static_cast<double>(1e-45F), 5e-324}) {
      const auto params =
          params_with([&](auto& p) { p.temperature = temperature, p.top_p = 0.9, p.min_p = 0.1; });
      EXPECT_EQ(tokens_at(logits, params, 200), Ids(200, 0)) << temperature;
      const std::vector<double> probabilities = sampler_for(logits, params).probabilities(logits, {}, {});
      EXPECT_EQ(probabilities, (std::vector<double>{1, 0, 0})) << temperature;
    }
  }
  // The other end: tokens that differ, but no longer after the division (the first id need not be the
  // largest).
  const auto hottest = params_with([](auto& p) { p.temperature = 1e308, p.top_p = 0; });
  EXPECT_EQ(tokens_at({-1e-30F, 0}, hottest, 20), Ids(20, 0));
}

TEST(Sampler, GivesTheSameTokenForSeedChoiceAndPositionAndOthersOtherwise) {
  const Logits logits(500, 0.0F);
  const auto params = params_with([](auto& p) { p.seed = 42; });
  const Ids tokens = tokens_at(logits, params, 16);
  EXPECT_EQ(tokens_at(logits, params, 16), tokens);
  EXPECT_NE(tokens_at(logits, params_with([](auto& p) { p.seed = 43; }), 16), tokens);
  EXPECT_NE(tokens_at(logits, params_with([](auto& p) { p.seed = 42, p.choice = 1; }), 16), tokens);
  EXPECT_NE(std::count(tokens.begin(), tokens.end(), tokens[0]), 16);
  EXPECT_EQ(sampler_for(logits, params).sample(logits, {}, {}, 9), tokens[9]);
}

TEST(Sampler, DrawsTheNoisyMaximumOfTheKeptTokens) {
  const Logits logits = random_logits(400, 4);
  const auto params =
      params_with([](auto& p) { p.temperature = 0.7, p.top_k = 60, p.top_p = 0.95, p.seed = 8; });
  Sampler sampler = sampler_for(logits, params);
  const Ids kept = kept_by(logits, params);
  const double largest = *std::max_element(logits.begin(), logits.end());
  const auto score = [&](TokenId id, std::uint64_t position) {
    return (static_cast<double>(logits[static_cast<std::size_t>(id)]) - largest) / 0.7 +
           gumbel_noise(8, 0, position, id);
  };
  for (std::uint64_t position = 0; position < 300; ++position) {
    TokenId best = kept[0];
    for (const TokenId id : kept) best = score(id, position) > score(best, position) ? id : best;
    EXPECT_EQ(sampler.sample(logits, {}, {}, position), best);
  }
}

TEST(Sampler, EndsInAnErrorWithoutAUsableRow) {
  const auto expect_runtime_error = [](const Logits& logits, const SamplingParams& params,
                                       const Ids& output) {
    try {
      sampler_for(logits, params).sample(logits, {}, output, 0);
      FAIL() << "a row without a usable distribution gave a token";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kRuntime);
    }
  };
  for (const double temperature : {0.0, 1.0}) {
    const auto params = params_with([&](auto& p) { p.temperature = temperature; });
    for (const Logits& logits :
         {Logits{1, kNan}, Logits{kNan, kNan}, Logits{1, kInf}, Logits{-kInf, -kInf}}) {
      expect_runtime_error(logits, params, {});
    }
  }
  const auto huge = params_with([](auto& p) { p.repetition_penalty = 1e300; });
  expect_runtime_error({-1e20F, -1e20F}, huge, {0, 1});  // both become -inf
  const auto tiny = params_with([](auto& p) { p.repetition_penalty = 1e-308; });
  expect_runtime_error({1e20F, 1.0F}, tiny, {0});  // becomes +inf
}

TEST(Sampler, RefusesRowsAndHistoriesThatDoNotFitTheVocabulary) {
  Sampler sampler(SamplingParams{}, 4);
  const auto expect_refused = [&](const Logits& logits, const Ids& prompt, const Ids& output) {
    try {
      sampler.sample(logits, prompt, output, 0);
      FAIL() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    }
  };
  expect_refused({1, 2, 3}, {}, {});
  expect_refused({1, 2, 3, 4, 5}, {}, {});
  expect_refused({1, 2, 3, 4}, {4}, {});
  expect_refused({1, 2, 3, 4}, {}, {-1});
  EXPECT_NO_THROW(sampler.sample(Logits{1, 2, 3, 4}, Ids{3}, Ids{0}, 0));
}

TEST(SamplerTrace, TellsWhatEveryStageDid) {
  const Logits logits = random_logits(300, 5);
  Sampler sampler = sampler_for(logits, params_with([](auto& p) {
                                  p.temperature = 0.8, p.top_k = 40, p.top_p = 0.9, p.min_p = 0.05,
                                  p.seed = 6;
                                }));
  const std::vector<double> probabilities = sampler.probabilities(logits, {}, {});
  for (std::uint64_t position = 0; position < 20; ++position) {
    SamplerTrace trace;
    const TokenId token = sampler.sample(logits, {}, {}, position, &trace);
    EXPECT_EQ(token, sampler.sample(logits, {}, {}, position)) << "the trace must not change the draw";
    EXPECT_EQ(trace.kept_top_k, 40U);
    EXPECT_LT(trace.kept_top_p, 40U);
    EXPECT_LT(trace.kept_min_p, trace.kept_top_p);
    ASSERT_EQ(trace.candidates.size(), std::min<std::size_t>(10, trace.kept_min_p));
    EXPECT_EQ(trace.candidates[0].token, token);
    double last_score = std::numeric_limits<double>::infinity();
    for (const auto& candidate : trace.candidates) {
      const auto id = static_cast<std::size_t>(candidate.token);
      EXPECT_EQ(candidate.logit, static_cast<double>(logits[id]));
      EXPECT_EQ(candidate.probability, probabilities[id]);
      EXPECT_EQ(candidate.noise, gumbel_noise(6, 0, position, candidate.token));
      EXPECT_LE(candidate.score, last_score);
      last_score = candidate.score;
    }
  }
}

TEST(SamplerTrace, OfGreedyHasNoNoise) {
  Sampler sampler(params_with([](auto& p) { p.temperature = 0, p.top_k = 1; }), 4);
  SamplerTrace trace;
  trace.candidates.resize(3);
  EXPECT_EQ(sampler.sample(Logits{1, 3, -kInf, 2}, {}, {}, 0, &trace), 1);
  EXPECT_EQ(trace.kept_top_k, 3U);
  EXPECT_EQ(trace.kept_min_p, 3U);
  ASSERT_EQ(trace.candidates.size(), 3U);
  EXPECT_EQ(trace.candidates[0].token, 1);
  EXPECT_EQ(trace.candidates[0].probability, 1.0);
  EXPECT_EQ(trace.candidates[1].token, 3);
  EXPECT_EQ(trace.candidates[1].probability, 0.0);
  EXPECT_EQ(trace.candidates[1].noise, 0.0);
}

Logits lab_rows(std::size_t rows) {
  Logits logits;
  for (std::size_t row = 0; row < rows; ++row) {
    for (const float p : {0.5F, 0.25F, 0.15F, 0.06F, 0.04F}) logits.push_back(std::log(p));
  }
  return logits;
}

TEST(SampleNext, TakesOnePositionARow) {
  const Logits logits = lab_rows(64);
  Generator one(7), another(7);
  const Ids first = sample_next(logits, 64, 1.0, 0, 1.0, 0.0, one);
  EXPECT_EQ(sample_next(logits, 64, 1.0, 0, 1.0, 0.0, another), first);
  EXPECT_NE(sample_next(logits, 64, 1.0, 0, 1.0, 0.0, one), first) << "positions go on";
  EXPECT_EQ(one.take_position(), 128U);

  Sampler sampler(params_with([](auto& p) { p.seed = 7; }), 5);
  for (std::size_t row = 0; row < 64; ++row) {
    EXPECT_EQ(first[row], sampler.sample(std::span(logits).first(5), {}, {}, row));
  }
}

TEST(SampleNext, FollowsTheFilteredAndTemperedDistribution) {
  constexpr std::size_t kRows = 20'000;
  const Logits logits = lab_rows(kRows);
  Generator generator(0);
  const auto frequency = [&](double temperature, std::int64_t top_k, TokenId token) {
    const Ids tokens = sample_next(logits, kRows, temperature, top_k, 1.0, 0.0, generator);
    return static_cast<double>(std::count(tokens.begin(), tokens.end(), token)) / kRows;
  };
  EXPECT_NEAR(frequency(1.0, 2, 0), 2.0 / 3, 0.015);
  EXPECT_EQ(frequency(1.0, 2, 2), 0.0);
  const double cold = frequency(0.5, 0, 0), plain = frequency(1.0, 0, 0), hot = frequency(2.0, 0, 0);
  EXPECT_NEAR(plain, 0.5, 0.015);
  EXPECT_GT(cold, plain);
  EXPECT_GT(plain, hot);
}

TEST(SampleNext, RefusesBadParametersAndShapes) {
  const Logits logits = lab_rows(2);
  Generator generator(1);
  const auto expect_refused = [&](std::size_t rows, double temperature, std::int64_t top_k, double top_p,
                                  double min_p) {
    try {
      sample_next(logits, rows, temperature, top_k, top_p, min_p, generator);
      FAIL() << "accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    }
  };
  expect_refused(2, -1.0, 0, 1.0, 0.0);
  expect_refused(2, 1.0, -2, 1.0, 0.0);
  expect_refused(2, 1.0, 0, 1.5, 0.0);
  expect_refused(2, 1.0, 0, 1.0, 2.0);
  expect_refused(0, 1.0, 0, 1.0, 0.0);
  expect_refused(3, 1.0, 0, 1.0, 0.0);
  EXPECT_EQ(sample_next(logits, 2, 0.0, 0, 1.0, 0.0, generator), (Ids{0, 0}));
}

}  // namespace
}  // namespace kvasir
