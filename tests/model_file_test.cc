// Small GGUF models made here: every weight type through the whole model, and files that must be refused.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "kernels/kernels.h"
#include "kvasir/error.h"
#include "kvasir/generate.h"
#include "kvasir/language_model.h"
#include "kvasir/sequence_runner.h"
#include "kvasir/version.h"
#include "toy_model.h"

namespace kvasir {
namespace {

using testing::kFeedForward;
using testing::kVocab;
using testing::kWidth;
using testing::toy_file;
using testing::ToyFile;

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
