// The lab's models with fixed weights against an independent implementation in float64 (tests/data/lab).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "golden_files.h"
#include "kvasir/executor.h"
#include "kvasir/kv_cache.h"
#include "kvasir/lab.h"
#include "kvasir/layers.h"

namespace kvasir {
namespace {

using testing::data_path;
using testing::read_ids;
using testing::read_state;
using testing::tensor_values;

struct GoldenModel {
  std::string name;
  Config config;
  std::vector<TokenId> prompt, sequence, greedy;  // [2][...]
};

std::vector<GoldenModel> golden_models() {
  simdjson::dom::parser parser;
  const simdjson::dom::element root = parser.load(data_path("lab/models.json"));
  std::vector<GoldenModel> models;
  for (const simdjson::dom::element item : root["models"].get_array()) {
    const auto number = [&](const char* key) {
      return static_cast<std::int32_t>(item["config"][key].get_int64().value());
    };
    GoldenModel model;
    model.name = std::string(item["name"].get_string().value());
    model.config.vocab_size = number("vocab_size");
    model.config.max_seq = number("max_seq");
    model.config.n_layer = number("n_layer");
    model.config.n_head = number("n_head");
    model.config.n_kv_head = number("n_kv_head");
    model.config.d_model = number("d_model");
    model.config.head_dim = model.config.d_model / model.config.n_head;
    model.config.d_ff = number("d_ff");
    model.config.rope_theta = item["config"]["rope_theta"].get_double();
    model.config.rms_eps = static_cast<float>(item["config"]["rms_eps"].get_double().value());
    model.prompt = read_ids(item["prompt"]);
    model.sequence = read_ids(item["sequence"]);
    model.greedy = read_ids(item["greedy"]);
    models.push_back(model);
  }
  EXPECT_EQ(models.size(), 2U);
  return models;
}

double largest_difference(const std::vector<float>& got, const std::vector<double>& expected) {
  EXPECT_EQ(got.size(), expected.size());
  double largest = 0.0;
  for (std::size_t i = 0; i < got.size(); ++i) largest = std::max(largest, std::fabs(got[i] - expected[i]));
  return largest;
}

TEST(LabGolden, LogitsAreWithinTwentyMillionthsOfFloat64) {
  for (GoldenModel& golden : golden_models()) {
    const SafetensorsFile file =
        SafetensorsFile::open(data_path("lab/" + golden.name + ".golden.safetensors"));
    const auto expected = tensor_values<double>(file, "logits_f64");
    TinyLM half_split(golden.config, read_state("lab/" + golden.name + ".safetensors"));
    EXPECT_LT(largest_difference(half_split.forward(golden.sequence, 2), expected), 2e-5) << golden.name;

    golden.config.rope_pairing = RopePairing::kInterleaved;
    StateDict reordered =
        read_state("lab/" + golden.name + ".qk_interleaved.safetensors");  // q and k projections only
    reordered.merge(read_state("lab/" + golden.name + ".safetensors"));
    TinyLM interleaved(golden.config, reordered);
    EXPECT_LT(largest_difference(interleaved.forward(golden.sequence, 2), expected), 2e-5) << golden.name;

    // Plain weights with interleaved pairs: what a pairing bug gives, and far from right.
    StateDict plain = read_state("lab/" + golden.name + ".safetensors");
    TinyLM wrong(golden.config, plain);
    const auto wrong_logits = wrong.forward(golden.sequence, 2);
    const auto wrong_expected = tensor_values<float>(file, "logits_wrong_pairing_f32");
    EXPECT_LT(largest_difference(wrong_logits, {wrong_expected.begin(), wrong_expected.end()}), 5e-5);
    EXPECT_GT(largest_difference(wrong_logits, expected), 0.01);
  }
}

TEST(LabGolden, GreedyTokensAreEqualOnEveryPath) {
  for (const GoldenModel& golden : golden_models()) {
    TinyLM model(golden.config, read_state("lab/" + golden.name + ".safetensors"));
    const std::size_t p = golden.prompt.size() / 2, n = golden.greedy.size() / 2;
    for (const bool use_cache : {false, true}) {
      for (const std::int64_t chunk : {0, 1, 3, 5}) {
        const auto got = generate(model, golden.prompt, 2, static_cast<std::int64_t>(n), use_cache, chunk,
                                  {.temperature = 0.0});
        for (std::size_t b = 0; b < 2; ++b) {
          const std::vector<TokenId> got_row(got.begin() + static_cast<std::ptrdiff_t>(b * (p + n) + p),
                                             got.begin() + static_cast<std::ptrdiff_t>((b + 1) * (p + n)));
          const std::vector<TokenId> expected(
              golden.greedy.begin() + static_cast<std::ptrdiff_t>(b * n),
              golden.greedy.begin() + static_cast<std::ptrdiff_t>((b + 1) * n));
          EXPECT_EQ(got_row, expected) << golden.name << " cache " << use_cache << " chunk " << chunk;
        }
      }
    }
  }
}

TEST(LabGolden, TheCacheHoldsKeysAfterRope) {
  for (const GoldenModel& golden : golden_models()) {
    TinyLM model(golden.config, read_state("lab/" + golden.name + ".safetensors"));
    const SafetensorsFile file =
        SafetensorsFile::open(data_path("lab/" + golden.name + ".golden.safetensors"));
    const auto keys = tensor_values<float>(file, "cache_k_f32"),
               values = tensor_values<float>(file, "cache_v_f32");
    KvCache cache(golden.config, 2);
    model.forward(golden.prompt, 2, &cache);
    const std::size_t layer_size = keys.size() / static_cast<std::size_t>(golden.config.n_layer);
    for (std::int32_t layer = 0; layer < golden.config.n_layer; ++layer) {
      const auto begin = static_cast<std::ptrdiff_t>(static_cast<std::size_t>(layer) * layer_size);
      const auto end = begin + static_cast<std::ptrdiff_t>(layer_size);
      const KvCache::Prefix prefix = cache.read(layer, cache.pos());
      EXPECT_LT(largest_difference(prefix.keys, {keys.begin() + begin, keys.begin() + end}), 2e-5);
      EXPECT_LT(largest_difference(prefix.values, {values.begin() + begin, values.begin() + end}), 2e-5);
    }
  }
}

TEST(LabGolden, MasksAreExact) {
  simdjson::dom::parser parser;
  const simdjson::dom::element root = parser.load(data_path("lab/masks.json"));
  std::size_t checked = 0;
  for (const simdjson::dom::element item : root["masks"].get_array()) {
    const auto mask = cache_attention_mask(item["t_new"].get_int64(), item["pos"].get_int64());
    std::size_t row = 0;
    for (const simdjson::dom::element expected : item["rows"].get_array()) {
      std::string got;
      for (const bool hidden : mask.at(row)) got += hidden ? '1' : '0';
      EXPECT_EQ(got, expected.get_string().value());
      ++row;
      ++checked;
    }
    EXPECT_EQ(row, mask.size());
  }
  EXPECT_GT(checked, 20U);
}

TEST(LabGolden, RopeRotatesAsInFloat64) {
  simdjson::dom::parser parser;
  const simdjson::dom::element root = parser.load(data_path("lab/rope.json"));
  const SafetensorsFile file = SafetensorsFile::open(data_path("lab/rope.safetensors"));
  Executor executor(1);
  for (const simdjson::dom::element item : root["rope"].get_array()) {
    const std::string name(item["name"].get_string().value());
    const auto head_dim = static_cast<std::size_t>(item["head_dim"].get_int64().value());
    const std::vector<TokenId> positions = read_ids(item["positions"]);
    for (const auto& [pairing, key] : {std::pair{RopePairing::kHalfSplit, ".neox_f64"},
                                       std::pair{RopePairing::kInterleaved, ".interleaved_f64"}}) {
      const Rope rope(static_cast<std::int64_t>(head_dim), item["theta"].get_double(), pairing);
      std::vector<float> rotated = tensor_values<float>(file, name + ".x_f32");
      std::vector<float> cosines, sines;
      for (std::size_t p = 0; p < positions.size(); ++p) {
        std::vector<float> cos(head_dim / 2), sin(head_dim / 2);
        rope.angles(positions[p], cos.data(), sin.data());
        rope.rotate(executor, rotated.data() + p * head_dim, 1, cos.data(), sin.data());
        cosines.insert(cosines.end(), cos.begin(), cos.end());
        sines.insert(sines.end(), sin.begin(), sin.end());
      }
      EXPECT_LT(largest_difference(cosines, tensor_values<double>(file, name + ".cos_f64")), 3.1e-8) << name;
      EXPECT_LT(largest_difference(sines, tensor_values<double>(file, name + ".sin_f64")), 3.1e-8) << name;
      EXPECT_LT(largest_difference(rotated, tensor_values<double>(file, name + key)), 1e-6) << name;
    }
  }
}

}  // namespace
}  // namespace kvasir
