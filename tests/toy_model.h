// Small models as GGUF files, made here: a vocabulary of 32, two layers, every weight type.
#ifndef KVASIR_TESTS_TOY_MODEL_H_
#define KVASIR_TESTS_TOY_MODEL_H_

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/tensor_type.h"
#include "formats/gguf_builder.h"
#include "kernels/half.h"

namespace kvasir::testing {

inline constexpr std::uint64_t kWidth = 256, kFeedForward = 512, kKvWidth = 128, kVocab = 32, kLayers = 2;

struct Stored {
  TensorType type;
  std::vector<std::uint64_t> shape;
  std::vector<std::byte> data;
};

// A model file as a value, so that a test can spoil one part of it.
struct ToyFile {
  std::map<std::string, std::uint32_t> numbers = {
      {"llama.context_length", 128},       {"llama.block_count", kLayers},
      {"llama.embedding_length", kWidth},  {"llama.feed_forward_length", kFeedForward},
      {"llama.attention.head_count", 4},   {"llama.attention.head_count_kv", 2},
      {"tokenizer.ggml.eos_token_id", 26}, {"tokenizer.ggml.bos_token_id", 27},
  };
  std::map<std::string, std::string> texts = {
      {"general.architecture", "llama"}, {"tokenizer.ggml.model", "gpt2"}, {"tokenizer.ggml.pre", "gpt-2"}};
  std::vector<std::string> tokens;
  bool add_bos = true;
  std::map<std::string, Stored> tensors;

  std::string write() const {
    GgufBuilder builder;
    for (const auto& [key, value] : texts) builder.add(key, value);
    for (const auto& [key, value] : numbers) builder.add(key, value);
    builder.add("llama.attention.layer_norm_rms_epsilon", 1e-5F);
    builder.add("tokenizer.ggml.add_bos_token", add_bos);
    builder.add_array("tokenizer.ggml.tokens", tokens);
    std::vector<std::int32_t> types(tokens.size(), 1);
    types[26] = types[27] = 3;
    builder.add_array("tokenizer.ggml.token_type", types);
    builder.add_array("tokenizer.ggml.merges", std::vector<std::string>{"a b", "c d", "e f", "g h"});
    for (const auto& [name, tensor] : tensors)
      builder.add_tensor(name, tensor.type, tensor.shape, tensor.data);
    const std::string path = ::testing::TempDir() + "toy-" + std::to_string(getpid()) + ".gguf";
    builder.write(path);
    return path;
  }
};

inline void put_half(std::vector<std::byte>& data, std::size_t at, float value, bool bf16 = false) {
  const std::uint16_t bits = bf16 ? kernels::f32_to_bf16(value) : kernels::f32_to_f16(value);
  std::memcpy(data.data() + at, &bits, sizeof bits);
}

// About normal, around 0 with a deviation of 0.06; unlike std::normal_distribution, the same on every
// machine.
inline float random_weight(std::mt19937& random) {
  double sum = 0.0;
  for (int i = 0; i < 4; ++i) sum += static_cast<double>(random()) * 0x1p-32 - 0.5;
  return static_cast<float>(sum * 0.104);
}

// Random quants, with scales that make weights of about 1/16.
inline Stored random_matrix(std::mt19937& random, TensorType type, std::uint64_t rows,
                            std::uint64_t columns) {
  const TensorTypeInfo& info = tensor_type_info(type);
  Stored stored{
      type, {rows, columns}, std::vector<std::byte>(rows * columns / info.block_values * info.block_bytes)};
  for (std::byte& b : stored.data) b = static_cast<std::byte>(random());
  for (std::size_t at = 0; at < stored.data.size(); at += info.block_bytes) {
    const float value = random_weight(random);
    switch (type) {
      case TensorType::kF32:
        std::memcpy(stored.data.data() + at, &value, sizeof value);
        break;
      case TensorType::kF16:
      case TensorType::kBF16:
        put_half(stored.data, at, value, type == TensorType::kBF16);
        break;
      case TensorType::kQ8_0:
        put_half(stored.data, at, 0.0008F);
        break;
      case TensorType::kQ4_0:
      case TensorType::kQ5_0:
        put_half(stored.data, at, type == TensorType::kQ4_0 ? 0.01F : 0.005F);
        break;
      case TensorType::kQ4_1:
      case TensorType::kQ5_1:
        put_half(stored.data, at, type == TensorType::kQ4_1 ? 0.01F : 0.005F);
        put_half(stored.data, at + 2, -0.075F);
        break;
      case TensorType::kQ4_K:
      case TensorType::kQ5_K:
        put_half(stored.data, at, type == TensorType::kQ4_K ? 0.0003F : 0.00015F);
        put_half(stored.data, at + 2, 0.0022F);
        break;
      case TensorType::kQ6_K:
        put_half(stored.data, at + 208, 0.00004F);
        break;
    }
  }
  return stored;
}

inline ToyFile toy_file(TensorType type = TensorType::kF32, bool tied = false) {
  std::mt19937 random(1);
  ToyFile file;
  for (char c = 'a'; c <= 'z'; ++c) file.tokens.emplace_back(1, c);
  for (const char* token : {"<eos>", "<bos>", "ab", "cd", "ef", "gh"}) file.tokens.emplace_back(token);
  const auto norm = [&](const std::string& name) {
    std::vector<float> ones(kWidth, 1.0F);
    const auto bytes = std::as_bytes(std::span(ones));
    file.tensors[name] = {TensorType::kF32, {kWidth}, {bytes.begin(), bytes.end()}};
  };
  const auto matrix = [&](const std::string& name, std::uint64_t rows, std::uint64_t columns) {
    file.tensors[name] = random_matrix(random, type, rows, columns);
  };
  matrix("token_embd.weight", kVocab, kWidth);
  for (std::uint64_t layer = 0; layer < kLayers; ++layer) {
    const std::string prefix = "blk." + std::to_string(layer) + ".";
    norm(prefix + "attn_norm.weight");
    matrix(prefix + "attn_q.weight", kWidth, kWidth);
    matrix(prefix + "attn_k.weight", kKvWidth, kWidth);
    matrix(prefix + "attn_v.weight", kKvWidth, kWidth);
    matrix(prefix + "attn_output.weight", kWidth, kWidth);
    norm(prefix + "ffn_norm.weight");
    matrix(prefix + "ffn_gate.weight", kFeedForward, kWidth);
    matrix(prefix + "ffn_up.weight", kFeedForward, kWidth);
    matrix(prefix + "ffn_down.weight", kWidth, kFeedForward);
  }
  norm("output_norm.weight");
  if (!tied) matrix("output.weight", kVocab, kWidth);
  return file;
}

}  // namespace kvasir::testing

#endif  // KVASIR_TESTS_TOY_MODEL_H_
