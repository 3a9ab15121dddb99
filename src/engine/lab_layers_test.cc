// The parts of the lab by themselves. Their numbers are held against the whole model's, bit by bit: what the
// blocks write into a cache is a function of all that came before.
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "kvasir/error.h"
#include "kvasir/lab.h"

namespace kvasir {
namespace {

constexpr std::int32_t kBatch = 2;

// Tensors below a prefix, without it.
StateDict part(const StateDict& state, const std::string& prefix) {
  StateDict result;
  for (const auto& [name, tensor] : state) {
    if (name.starts_with(prefix)) result[name.substr(prefix.size())] = tensor;
  }
  return result;
}

std::vector<TokenId> random_ids(std::size_t count, std::int32_t vocab_size) {
  std::mt19937 random(11);
  std::vector<TokenId> ids(count);
  for (TokenId& id : ids) id = static_cast<TokenId>(random() % static_cast<unsigned>(vocab_size));
  return ids;
}

std::vector<float> embedded(const StateDict& state, const std::vector<TokenId>& ids, std::int64_t d_model) {
  std::vector<float> x;
  for (const TokenId id : ids) {
    const auto row = state.at("model.embed_tokens.weight").values.begin() + id * d_model;
    x.insert(x.end(), row, row + d_model);
  }
  return x;
}

TEST(LabBlock, FillsTheCacheAsTheModelDoes) {
  const Config config;
  const StateDict state = random_weights(config, 3);
  TinyLM model(config, state);
  KvCache expected(config, kBatch), cache(config, kBatch);
  Executor executor(2);
  for (const std::size_t t : {5U, 1U, 3U}) {
    const std::vector<TokenId> ids = random_ids(kBatch * t, config.vocab_size);
    model.forward(ids, kBatch, &expected);
    std::vector<float> x = embedded(state, ids, config.d_model);
    for (std::int32_t layer = 0; layer < config.n_layer; ++layer) {
      const LabBlock block(config, layer, part(state, "model.layers." + std::to_string(layer) + "."));
      x = block.forward(x, kBatch, &cache, executor);
    }
    cache.advance(static_cast<std::int64_t>(t));
  }
  for (std::int32_t layer = 0; layer < config.n_layer; ++layer) {
    EXPECT_EQ(cache.read(layer, 9).keys, expected.read(layer, 9).keys);
    EXPECT_EQ(cache.read(layer, 9).values, expected.read(layer, 9).values);
  }
}

TEST(LabAttention, WithoutACacheStartsAtPositionZero) {
  const Config config;
  const LabAttention attention(config, 1, part(random_weights(config, 3), "model.layers.1.self_attn."));
  Executor executor(1);
  const std::vector<float> x =
      embedded(random_weights(config, 3), random_ids(kBatch * 6, config.vocab_size), config.d_model);
  KvCache cache(config, kBatch);
  EXPECT_EQ(attention.forward(x, kBatch, nullptr, executor), attention.forward(x, kBatch, &cache, executor));
  EXPECT_EQ(cache.pos(), 0);
}

TEST(LabLayers, RefuseWhatDoesNotFit) {
  const Config config;
  const StateDict weights = part(random_weights(config, 3), "model.layers.0.self_attn.");
  const LabAttention attention(config, 0, weights);
  Executor executor(1);
  KvCache cache(config, kBatch);
  const auto kind_of = [](const auto& call) {
    try {
      call();
    } catch (const Error& error) {
      return error.kind();
    }
    return ErrorKind::kIo;
  };
  const auto run = [&](std::size_t numbers, std::int32_t batch, KvCache* with) {
    return kind_of([&] { attention.forward(std::vector<float>(numbers), batch, with, executor); });
  };
  EXPECT_EQ(run(0, 1, nullptr), ErrorKind::kInvalidArgument);
  EXPECT_EQ(run(63, 1, nullptr), ErrorKind::kInvalidArgument);
  EXPECT_EQ(run(64, 0, nullptr), ErrorKind::kInvalidArgument);
  EXPECT_EQ(run(3 * 64, 2, nullptr), ErrorKind::kInvalidArgument);
  EXPECT_EQ(run(64, 1, &cache), ErrorKind::kInvalidArgument);
  EXPECT_EQ(run(65 * 64, 1, nullptr), ErrorKind::kCapacity);
  EXPECT_EQ(kind_of([&] { LabAttention(config, 2, weights); }), ErrorKind::kInvalidArgument);
  EXPECT_EQ(kind_of([&] { LabAttention(config, 0, {}); }), ErrorKind::kFormat);
  EXPECT_EQ(kind_of([&] {
              apply_rope(std::vector<float>(16), std::vector<std::int64_t>{-1}, 16, 1e4,
                         RopePairing::kHalfSplit, executor);
            }),
            ErrorKind::kInvalidArgument);
  EXPECT_EQ(kind_of([&] { rms_norm(std::vector<float>(5), std::vector<float>(2), 1e-5F, executor); }),
            ErrorKind::kInvalidArgument);
}

TEST(Rope, TurnsAPairByThePositionTimesItsFrequency) {
  Executor executor(1);
  const std::vector<float> x = {1, 0, 0, 1};  // pairs (0, 2), (1, 3)
  const std::vector<float> y =
      apply_rope(x, std::vector<std::int64_t>{3}, 4, 100.0, RopePairing::kHalfSplit, executor);
  const std::vector<double> expected = {std::cos(3.0), -std::sin(0.3), std::sin(3.0), std::cos(0.3)};
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(y[i], expected[i], 1e-7) << i;
}

}  // namespace
}  // namespace kvasir
