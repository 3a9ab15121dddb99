// The thirteen tests of the lab, under its names. Where the lab allows 1e-5 between two of our own paths, the
// bits must be equal here.
#include "kvasir/lab.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <span>
#include <vector>

#include "kvasir/error.h"
#include "kvasir/kv_cache.h"
#include "kvasir/sampling.h"

namespace kvasir {
namespace {

const std::vector<double> kProbabilities = {0.5, 0.25, 0.15, 0.06, 0.04};
constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

std::vector<double> lab_logits(const std::vector<std::size_t>& order = {0, 1, 2, 3, 4}) {
  std::vector<double> logits;
  for (const std::size_t i : order) logits.push_back(std::log(kProbabilities[i]));
  return logits;
}

std::vector<float> lab_logits_f32(const std::vector<std::size_t>& order = {0, 1, 2, 3, 4}) {
  const std::vector<double> logits = lab_logits(order);
  return {logits.begin(), logits.end()};
}

std::vector<bool> kept(const std::vector<double>& row) {
  std::vector<bool> result;
  for (const double value : row) result.push_back(std::isfinite(value));
  return result;
}

std::vector<double> top_k(std::vector<double> row, std::int64_t k) {
  top_k_filter(row, k);
  return row;
}
std::vector<double> top_p(std::vector<double> row, double p) {
  top_p_filter(row, p);
  return row;
}
std::vector<double> min_p(std::vector<double> row, double p) {
  min_p_filter(row, p);
  return row;
}

std::vector<bool> first_n(std::size_t n) {
  std::vector<bool> result(5, false);
  for (std::size_t i = 0; i < n; ++i) result[i] = true;
  return result;
}

std::vector<float> random_numbers(std::mt19937& random, std::size_t count) {
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& value : values) value = normal(random);
  return values;
}

std::vector<TokenId> random_ids(unsigned seed, std::size_t count, std::int32_t vocab_size) {
  std::mt19937 random(seed);
  std::vector<TokenId> ids(count);
  for (TokenId& id : ids) id = static_cast<TokenId>(random() % static_cast<unsigned>(vocab_size));
  return ids;
}

// Columns [begin, end) of a [2][t] array of rows of `width` numbers.
template <class T>
std::vector<T> columns(std::span<const T> rows, std::size_t t, std::size_t begin, std::size_t end,
                       std::size_t width = 1) {
  std::vector<T> result;
  for (std::size_t b = 0; b < rows.size() / (t * width); ++b) {
    result.insert(result.end(), rows.begin() + static_cast<std::ptrdiff_t>((b * t + begin) * width),
                  rows.begin() + static_cast<std::ptrdiff_t>((b * t + end) * width));
  }
  return result;
}

TEST(Lab, test_cache_update_writes_and_returns_prefix) {
  const Config config;
  KvCache cache(config, 2);
  std::mt19937 random(0);
  const auto row = static_cast<std::size_t>(2 * config.n_kv_head * config.head_dim);
  const std::vector<float> k0 = random_numbers(random, 5 * row), v0 = random_numbers(random, 5 * row);
  const auto plus = [](std::vector<float> values, float amount) {
    for (float& value : values) value += amount;
    return values;
  };
  for (std::int32_t layer = 0; layer < config.n_layer; ++layer) {
    const auto amount = static_cast<float>(layer);
    const KvCache::Prefix prefix = cache.update(layer, plus(k0, amount), plus(v0, -amount), 5);
    EXPECT_EQ(cache.pos(), 0);  // update does not advance
    EXPECT_EQ(prefix.positions, 5);
    EXPECT_EQ(prefix.keys, plus(k0, amount));
    EXPECT_EQ(prefix.values, plus(v0, -amount));
  }
  cache.advance(5);
  EXPECT_EQ(cache.pos(), 5);

  const std::vector<float> k1 = random_numbers(random, 3 * row), v1 = random_numbers(random, 3 * row);
  const KvCache::Prefix prefix = cache.update(1, k1, v1, 3);
  EXPECT_EQ(cache.pos(), 5);
  EXPECT_EQ(prefix.positions, 8);
  const auto head_dim = static_cast<std::size_t>(config.head_dim);
  const auto before = columns<float>(prefix.keys, 8, 0, 5, head_dim),
             after = columns<float>(prefix.keys, 8, 5, 8, head_dim);
  EXPECT_EQ(before, plus(k0, 1.0F));
  EXPECT_EQ(after, k1);
  EXPECT_EQ(columns<float>(prefix.values, 8, 5, 8, head_dim), v1);
  for (const float value : columns<float>(cache.read(0, 8).keys, 8, 5, 8, head_dim))
    EXPECT_EQ(value, 0.0F);  // layer 0 untouched

  cache.advance(3);
  const auto too_long = random_numbers(random, static_cast<std::size_t>(config.max_seq) * row);
  EXPECT_THROW(cache.update(0, too_long, too_long, config.max_seq), Error);
  const auto just_full = random_numbers(random, static_cast<std::size_t>(config.max_seq - 8) * row);
  EXPECT_NO_THROW(cache.update(0, just_full, just_full, config.max_seq - 8));
}

TEST(Lab, test_cache_bytes_match_formula) {
  Config config;
  EXPECT_EQ(KvCache(config, 3).nbytes(), 98304U);
  for (const std::int32_t max_seq :
       {1, 7, 15, 16, 17, 63, 64, 65, 1000}) {  // multiples of the block of 16 or not
    for (const std::int32_t batch : {1, 3}) {
      for (const KvType type : {KvType::kF32, KvType::kF16, KvType::kBF16}) {
        config.max_seq = max_seq;
        const std::size_t bytes = type == KvType::kF32 ? 4 : 2;
        EXPECT_EQ(KvCache(config, batch, type).nbytes(), 2U * 2U * static_cast<std::size_t>(batch) * 2U *
                                                             static_cast<std::size_t>(max_seq) * 16U * bytes);
      }
    }
  }
}

TEST(KvCacheSize, ThatNoMachineHoldsIsRefused) {
  Config config;
  config.max_seq = config.head_dim = 2147483646;
  config.n_kv_head = config.n_head = 1000000;
  EXPECT_THROW(KvCache(config, 2147483647), Error);
}

TEST(Lab, test_mask_offsets_by_cache_position) {
  EXPECT_EQ(cache_attention_mask(2, 3),
            (std::vector<std::vector<bool>>{{false, false, false, false, true},
                                            {false, false, false, false, false}}));
  const auto square = cache_attention_mask(8, 0);
  for (std::size_t i = 0; i < 8; ++i) {
    for (std::size_t j = 0; j < 8; ++j) EXPECT_EQ(square[i][j], j > i);
  }
  EXPECT_EQ(cache_attention_mask(1, 8), std::vector<std::vector<bool>>{std::vector<bool>(9, false)});
}

TEST(Lab, test_incremental_logits_match_full_forward) {
  const Config config;
  TinyLM model(config, 1);
  const std::vector<TokenId> idx = random_ids(1, 40, config.vocab_size);  // [2][20]
  const std::vector<float> full = model.forward(idx, 2);
  KvCache cache(config, 2);
  const auto vocab = static_cast<std::size_t>(config.vocab_size);
  EXPECT_EQ(model.forward(columns<TokenId>(idx, 20, 0, 8), 2, &cache), columns<float>(full, 20, 0, 8, vocab));
  EXPECT_EQ(cache.pos(), 8);
  for (std::size_t t = 8; t < 20; ++t) {
    EXPECT_EQ(model.forward(columns<TokenId>(idx, 20, t, t + 1), 2, &cache),
              columns<float>(full, 20, t, t + 1, vocab));
  }
  EXPECT_EQ(cache.pos(), 20);
  EXPECT_NE(full.front(), full.back());
}

TEST(Lab, test_chunked_prefill_matches_single_prefill) {
  const Config config;
  TinyLM model(config, 2);
  const std::vector<TokenId> idx = random_ids(2, 34, config.vocab_size);  // [2][17]
  const std::vector<float> full = model.forward(idx, 2);
  KvCache cache(config, 2);
  for (std::size_t begin = 0; begin < 17; begin += 5) {
    const std::size_t end = std::min<std::size_t>(begin + 5, 17);
    EXPECT_EQ(model.forward(columns<TokenId>(idx, 17, begin, end), 2, &cache),
              columns<float>(full, 17, begin, end, static_cast<std::size_t>(config.vocab_size)));
  }
  EXPECT_EQ(cache.pos(), 17);
}

TEST(Lab, test_top_k) {
  EXPECT_EQ(kept(top_k(lab_logits(), 2)), first_n(2));
  const std::vector<double> row = {1.0, 3.0, 2.0, 2.0, 0.0};
  EXPECT_EQ(top_k(row, 2), (std::vector<double>{kMinusInfinity, 3.0, 2.0, 2.0, kMinusInfinity}));  // tie kept
  EXPECT_EQ(top_k(row, 50), row);
}

TEST(Lab, test_top_p_keeps_the_token_that_crosses_the_threshold) {
  const std::vector<float> f32 = lab_logits_f32();
  for (const auto& [p, n] :
       std::vector<std::pair<double, std::size_t>>{{0.5, 1}, {0.6, 2}, {0.9, 3}, {1e-9, 1}, {1.0, 5}}) {
    EXPECT_EQ(kept(top_p(lab_logits(), p)), first_n(n)) << p;
    EXPECT_EQ(kept(top_p({f32.begin(), f32.end()}, p)), first_n(n)) << p << " in float32";
  }
}

TEST(Lab, test_top_p_works_on_unsorted_rows) {
  const std::vector<double> mixed = lab_logits({3, 0, 4, 1, 2}), reversed = lab_logits({4, 3, 2, 1, 0});
  EXPECT_EQ(kept(top_p(mixed, 0.6)), (std::vector<bool>{false, true, false, true, false}));
  EXPECT_EQ(kept(top_p(reversed, 0.6)), (std::vector<bool>{false, false, false, true, true}));
  EXPECT_EQ(top_p(mixed, 0.6)[1], mixed[1]);  // kept values are unchanged
  EXPECT_EQ(top_p(mixed, 0.6)[3], mixed[3]);
}

TEST(Lab, test_min_p) {
  EXPECT_EQ(kept(min_p(lab_logits(), 0.2)), first_n(3));
  const std::vector<double> flat(50, 0.3);
  EXPECT_EQ(min_p(flat, 0.9), flat);  // permissive on a flat row
  // Filters compose: top-p after top-k sees the renormalised [2/3, 1/3].
  EXPECT_EQ(kept(top_p(top_k(lab_logits(), 2), 0.66)), first_n(1));
  EXPECT_EQ(kept(top_p(lab_logits(), 0.66)), first_n(2));
}

TEST(Lab, test_greedy_and_low_temperature) {
  std::vector<float> rows = lab_logits_f32({3, 0, 4, 1, 2});
  const std::vector<float> second = lab_logits_f32({4, 3, 2, 1, 0});
  rows.insert(rows.end(), second.begin(), second.end());
  Generator generator(0);
  const std::vector<TokenId> best = {1, 4};
  EXPECT_EQ(sample_next(rows, 2, 0.0, 0, 1.0, 0.0, generator), best);
  EXPECT_EQ(sample_next(rows, 2, 0.0, 1, 0.0, 1.0, generator), best);
  for (int i = 0; i < 50; ++i) EXPECT_EQ(sample_next(rows, 2, 0.01, 0, 1.0, 0.0, generator), best);
}

std::vector<double> frequencies(double temperature, std::int64_t k, std::uint64_t seed) {
  constexpr std::size_t kDraws = 20000;
  std::vector<float> rows;
  const std::vector<float> row = lab_logits_f32();
  for (std::size_t i = 0; i < kDraws; ++i) rows.insert(rows.end(), row.begin(), row.end());
  Generator generator(seed);
  std::vector<double> frequency(5, 0.0);
  for (const TokenId token : sample_next(rows, kDraws, temperature, k, 1.0, 0.0, generator)) {
    frequency[static_cast<std::size_t>(token)] += 1.0 / kDraws;
  }
  return frequency;
}

TEST(Lab, test_sampling_distribution_after_top_k) {
  const std::vector<double> frequency = frequencies(1.0, 2, 0);
  EXPECT_NEAR(frequency[0], 2.0 / 3.0, 0.015);
  EXPECT_NEAR(frequency[1], 1.0 / 3.0, 0.015);
  EXPECT_EQ(frequency[2] + frequency[3] + frequency[4], 0.0);
  EXPECT_EQ(frequencies(1.0, 0, 7), frequencies(1.0, 0, 7));  // the generator is used
  EXPECT_NE(frequencies(1.0, 0, 7), frequencies(1.0, 0, 8));
}

TEST(Lab, test_temperature_flattens) {
  std::vector<double> first;
  for (const double temperature : {0.5, 1.0, 2.0}) {
    const std::vector<double> frequency = frequencies(temperature, 0, 0);
    double total = 0.0;
    for (const double p : kProbabilities) total += std::pow(p, 1.0 / temperature);
    for (std::size_t i = 0; i < 5; ++i) {
      EXPECT_NEAR(frequency[i], std::pow(kProbabilities[i], 1.0 / temperature) / total, 0.015);
    }
    first.push_back(frequency[0]);
  }
  EXPECT_GT(first[0], first[1]);
  EXPECT_GT(first[1], first[2]);
  // Temperature first: at 2 the filters see the flattened row, so that top-p 0.5 keeps two tokens.
  SamplingParams params;
  params.temperature = 2.0;
  params.top_p = 0.5;
  const std::vector<double> probabilities = Sampler(params, 5).probabilities(lab_logits_f32(), {}, {});
  std::vector<bool> positive;
  for (const double p : probabilities) positive.push_back(p > 0.0);
  EXPECT_EQ(positive, first_n(2));
}

TEST(Lab, test_cached_generation_equals_uncached) {
  const Config config;
  TinyLM model(config, 3);
  const std::vector<TokenId> prompt = random_ids(3, 20, config.vocab_size);  // [2][10]
  const LabSampling greedy{.temperature = 0.0};
  const std::vector<TokenId> uncached = generate(model, prompt, 2, 20, false, 0, greedy);
  EXPECT_EQ(uncached.size(), 60U);
  EXPECT_EQ(columns<TokenId>(uncached, 30, 0, 10), prompt);
  EXPECT_EQ(generate(model, prompt, 2, 20, true, 0, greedy), uncached);
  EXPECT_EQ(generate(model, prompt, 2, 20, true, 4, greedy), uncached);
  // Sampled, too: the noise depends on seed and position only.
  const auto sampled = [&](bool use_cache, std::int64_t chunk) {
    Generator generator(42);
    return generate(model, prompt, 2, 20, use_cache, chunk,
                    {.temperature = 0.8, .top_k = 20, .generator = &generator});
  };
  EXPECT_EQ(sampled(true, 0), sampled(false, 0));
  EXPECT_EQ(sampled(true, 3), sampled(false, 0));
  EXPECT_THROW(generate(model, prompt, 2, 55, true, 0, greedy), Error);  // 10 + 55 > 64
}

}  // namespace
}  // namespace kvasir
