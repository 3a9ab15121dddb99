// Small GGUF models made here: every weight type through the whole model, and files that must be refused.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "formats/gguf_builder.h"
#include "kernels/half.h"
#include "kernels/kernels.h"
#include "kvasir/error.h"
#include "kvasir/generate.h"
#include "kvasir/language_model.h"
#include "kvasir/sequence_runner.h"
#include "kvasir/version.h"

namespace kvasir {
namespace {

constexpr std::uint64_t kWidth = 256, kFeedForward = 512, kKvWidth = 128, kVocab = 32, kLayers = 2;

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

void put_half(std::vector<std::byte>& data, std::size_t at, float value, bool bf16 = false) {
  const std::uint16_t bits = bf16 ? kernels::f32_to_bf16(value) : kernels::f32_to_f16(value);
  std::memcpy(data.data() + at, &bits, sizeof bits);
}

// About normal, around 0 with a deviation of 0.06; unlike std::normal_distribution, the same on every
// machine.
float random_weight(std::mt19937& random) {
  double sum = 0.0;
  for (int i = 0; i < 4; ++i) sum += static_cast<double>(random()) * 0x1p-32 - 0.5;
  return static_cast<float>(sum * 0.104);
}

// Random quants, with scales that make weights of about 1/16.
Stored random_matrix(std::mt19937& random, TensorType type, std::uint64_t rows, std::uint64_t columns) {
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

ToyFile toy_file(TensorType type = TensorType::kF32, bool tied = false) {
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

std::vector<float> logits_of(const LanguageModel& model, Executor& executor, RunOptions options) {
  std::vector<TokenId> ids;
  for (TokenId i = 0; i < 40; ++i) ids.push_back(i * 7 % 32);
  SequenceRunner runner(model.model(), executor, 1, 40, KvType::kF16, options);
  const auto logits = runner.append(ids, 40);
  return {logits.begin(), logits.end()};
}

TEST(ModelFile, EveryWeightTypeGivesTheSameBitsOnEveryPathAndMachine) {
  static_assert(kArithmeticVersion == 1, "other results have other hashes");
  // Of the logits; computed once, with the definition's kernels on x86-64.
  const std::map<TensorType, std::string> hashes = {
      {TensorType::kF32, "ccff00ad68d95a6a2d0dce945ceb203d09ee5d4b3d66c29df58ff08aeb0ceefe"},
      {TensorType::kF16, "27a15994af306306f797b7304ca6567f97cd11697664015b0ce04232e902fe4b"},
      {TensorType::kBF16, "3bf2c50d0fa8289325d15c66bb18de6b47a84bc98e9faf55e7c2f7a2fe8c3a0c"},
      {TensorType::kQ8_0, "b68ce39dd3b693612439705cd3adc455d5910b2743e0edea9534e127e580f645"},
      {TensorType::kQ4_0, "c4536f2d90d785686d4f6434f0311cf9801294744b3f994307d281e36cbcc53f"},
      {TensorType::kQ4_1, "980e7689a640a5371d5b77d965e68fdfb4e77db78d0e0d1143ecbaa526705a78"},
      {TensorType::kQ5_0, "c2520ba2a612f9a2e54db516295c5540717e312c5502a1fc97f93d14df0e74c0"},
      {TensorType::kQ5_1, "05058cb1df6f8c0b78d9a2cf7e94e782de5eeec0342686a97acb70536159bba2"},
      {TensorType::kQ4_K, "2c052eebcf4242ae8b000167175778d9dd591caf5989de33e0b0f946e38f39b3"},
      {TensorType::kQ5_K, "ce1ec149bd25d67ec12afc3d230a09ad46b4af980b99b1a595a2e06a9d56d9fb"},
      {TensorType::kQ6_K, "c7bfaaa40437e36f99d637ffd2fcdd1895ab52158f04bedb5fc585a4a5003791"}};
  for (const auto& [type, hash] : hashes) {
    const std::string path = toy_file(type, type == TensorType::kQ8_0).write();
    const std::string name(tensor_type_info(type).name);
    Executor scalar(1, "scalar"), fast(2);
    const LanguageModel model = LanguageModel::load(path, Activations::kDefault, fast);
    const std::vector<float> expected = logits_of(model, scalar, {});
    Sha256 sha256;
    sha256.update(std::as_bytes(std::span(expected)));
    EXPECT_EQ(sha256.hex_digest(), hash) << name;
    for (const std::int64_t chunk : {0, 1, 3, 16, 39}) {
      const std::vector<float> got = logits_of(model, fast, {.prefill_chunk = chunk});
      ASSERT_EQ(std::memcmp(got.data(), expected.data(), got.size() * sizeof(float)), 0)
          << name << " chunk " << chunk;
    }
    // And about what float activations give: the types differ in nothing else.
    const LanguageModel exact = LanguageModel::load(path, Activations::kF32, fast);
    const std::vector<float> reference = logits_of(exact, fast, {});
    double difference = 0.0, magnitude = 0.0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      ASSERT_TRUE(std::isfinite(expected[i]));
      difference += std::pow(expected[i] - reference[i], 2);
      magnitude += std::pow(reference[i], 2);
    }
    EXPECT_GT(magnitude, 1.0);
    const bool exact_type = type == TensorType::kF32 || type == TensorType::kF16;
    EXPECT_LE(std::sqrt(difference / magnitude), exact_type ? 0.0 : 0.06) << name;
    std::remove(path.c_str());
  }
}

TEST(ModelFile, APromptStartsWithBosWhereTheFileAsksForIt) {
  Executor executor(1);
  ToyFile file = toy_file();
  std::string path = file.write();
  const LanguageModel with_bos = LanguageModel::load(path, Activations::kDefault, executor);
  EXPECT_EQ(with_bos.encode_prompt("abc", ControlTokens::kAsText), (std::vector<TokenId>{27, 28, 2}));
  EXPECT_EQ(with_bos.encode_prompt("", ControlTokens::kAsText), std::vector<TokenId>{27});
  GenerateRequest request;
  request.prompt = {27};
  request.max_tokens = 3;
  request.ignore_eos = true;
  EXPECT_EQ(generate(with_bos, executor, request).tokens.size(), 3U);
  const std::string fingerprint = with_bos.fingerprint(KvType::kF16);
  EXPECT_NE(fingerprint, with_bos.fingerprint(KvType::kF32));

  file.add_bos = false;
  path = file.write();
  const LanguageModel without = LanguageModel::load(path, Activations::kDefault, executor);
  EXPECT_EQ(without.encode_prompt("abc", ControlTokens::kAsText), (std::vector<TokenId>{28, 2}));
  EXPECT_THROW(without.encode_prompt("", ControlTokens::kAsText), Error);
  EXPECT_NE(fingerprint, without.fingerprint(KvType::kF16));
  try {
    without.chat_template();
    FAIL() << "a model without a chat template gave one";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("chat template"), std::string::npos) << error.what();
  }
  std::remove(path.c_str());
}

TEST(ModelFile, WeightsThatAreNotNumbersEndTheGenerationWithAnError) {
  ToyFile file = toy_file();
  const float nan = std::nanf("");
  std::memcpy(file.tensors["blk.1.ffn_down.weight"].data.data(), &nan, sizeof nan);
  const std::string path = file.write();
  Executor executor(1);
  const LanguageModel model = LanguageModel::load(path, Activations::kDefault, executor);
  GenerateRequest request;
  request.prompt = {1, 2};
  request.max_tokens = 3;
  try {
    generate(model, executor, request);
    FAIL() << "NaN became text";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kRuntime);
  }
  std::remove(path.c_str());
}

TEST(ModelFile, RefusesModelsThatItCannotRunRightly) {
  struct Case {
    const char* what;
    std::function<void(ToyFile&)> spoil;
    const char* named;  // must be in the message
  };
  const Case cases[] = {
      {"another architecture", [](ToyFile& f) { f.texts["general.architecture"] = "mamba"; }, "mamba"},
      {"no architecture", [](ToyFile& f) { f.texts.erase("general.architecture"); }, "general.architecture"},
      {"no layer count", [](ToyFile& f) { f.numbers.erase("llama.block_count"); }, "llama.block_count"},
      {"no layers", [](ToyFile& f) { f.numbers["llama.block_count"] = 0; }, "llama.block_count"},
      {"too many layers", [](ToyFile& f) { f.numbers["llama.block_count"] = 2000000000; }, "blk.2."},
      {"too few layers", [](ToyFile& f) { f.numbers["llama.block_count"] = 1; }, "layers.1."},
      {"no heads", [](ToyFile& f) { f.numbers["llama.attention.head_count"] = 0; }, "head_count"},
      {"heads that do not divide", [](ToyFile& f) { f.numbers["llama.attention.head_count_kv"] = 3; },
       "n_kv_head"},
      {"more heads than width", [](ToyFile& f) { f.numbers["llama.attention.head_count"] = 1000; },
       "head_dim"},
      {"experts", [](ToyFile& f) { f.numbers["llama.expert_count"] = 8; }, "expert_count"},
      {"a window", [](ToyFile& f) { f.numbers["llama.attention.sliding_window"] = 64; }, "sliding_window"},
      {"scaled RoPE", [](ToyFile& f) { f.texts["llama.rope.scaling.type"] = "yarn"; }, "rope.scaling"},
      {"partial RoPE", [](ToyFile& f) { f.numbers["llama.rope.dimension_count"] = 32; }, "dimension_count"},
      {"RoPE factors", [](ToyFile& f) { f.tensors["rope_freqs.weight"] = f.tensors["output_norm.weight"]; },
       "rope_freqs"},
      {"a bias", [](ToyFile& f) { f.tensors["blk.0.attn_q.bias"] = f.tensors["output_norm.weight"]; },
       "attn_q.bias"},
      {"a missing tensor", [](ToyFile& f) { f.tensors.erase("blk.1.attn_v.weight"); }, "blk.1.attn_v.weight"},
      {"a missing norm", [](ToyFile& f) { f.tensors.erase("output_norm.weight"); }, "output_norm.weight"},
      {"a wrong shape",
       [](ToyFile& f) {
         f.tensors["blk.0.ffn_up.weight"].shape = {kWidth, kFeedForward};
       },
       "up_proj"},
      {"a norm that is a matrix",
       [](ToyFile& f) {
         f.tensors["output_norm.weight"].shape = {1, kWidth};
       },
       "norm"},
      {"a vector for embeddings",
       [](ToyFile& f) { f.tensors["token_embd.weight"].shape = {kVocab * kWidth}; }, "token_embd"},
      {"a shorter vocabulary",
       [](ToyFile& f) {
         for (const char* name : {"token_embd.weight", "output.weight"}) {
           f.tensors[name].shape[0] = kVocab + 1;
           f.tensors[name].data.resize((kVocab + 1) * kWidth * sizeof(float));
         }
       },
       "tokens"},
      {"a longer vocabulary", [](ToyFile& f) { f.tokens.emplace_back("zz"); }, "tokens"},
      {"no tokenizer", [](ToyFile& f) { f.texts.erase("tokenizer.ggml.model"); }, "tokenizer.ggml.model"},
      {"eos outside the vocabulary", [](ToyFile& f) { f.numbers["tokenizer.ggml.eos_token_id"] = 32; },
       "eos_token_id"},
  };
  Executor executor(1);
  for (const Case& test : cases) {
    ToyFile file = toy_file();
    test.spoil(file);
    const std::string path = file.write();
    try {
      LanguageModel::load(path, Activations::kDefault, executor);
      ADD_FAILURE() << test.what << " was taken";
    } catch (const Error& error) {
      const std::string message = error.what();
      EXPECT_EQ(error.kind(), ErrorKind::kFormat) << message;
      EXPECT_NE(message.find(path), std::string::npos) << message;
      EXPECT_NE(message.find(test.named), std::string::npos) << test.what << ": " << message;
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    }
    std::remove(path.c_str());
  }
}

}  // namespace
}  // namespace kvasir
