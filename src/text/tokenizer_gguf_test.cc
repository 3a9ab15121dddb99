#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "formats/gguf_builder.h"
#include "kvasir/error.h"
#include "kvasir/tokenizer.h"

namespace kvasir {
namespace {

// The keys of a small tokenizer; each may be changed before the file is made.
struct Keys {
  std::string model = "gpt2", pre = "gpt-2";
  std::vector<std::string> tokens = {"<s>", "a", "b", "ab"};
  std::vector<std::int32_t> types = {3, 1, 1, 1};
  std::vector<std::string> merges = {"a b"};
  std::function<void(GgufBuilder&)> more = [](GgufBuilder&) {};
};

GgufFile make_file(const Keys& keys) {
  GgufBuilder builder;
  if (!keys.model.empty()) builder.add("tokenizer.ggml.model", keys.model);
  if (!keys.pre.empty()) builder.add("tokenizer.ggml.pre", keys.pre);
  if (!keys.tokens.empty()) builder.add_array("tokenizer.ggml.tokens", keys.tokens);
  if (!keys.types.empty()) builder.add_array("tokenizer.ggml.token_type", keys.types);
  if (!keys.merges.empty()) builder.add_array("tokenizer.ggml.merges", keys.merges);
  keys.more(builder);
  return GgufFile::parse(builder.build(), "toy.gguf");
}

TEST(TokenizerGguf, ReadsAllKeys) {
  Keys keys;
  keys.more = [](GgufBuilder& builder) {
    builder.add("tokenizer.ggml.bos_token_id", std::uint32_t{0})
        .add("tokenizer.ggml.eos_token_id", std::uint32_t{1})
        .add("tokenizer.ggml.eot_token_id", std::uint32_t{2})
        .add("tokenizer.ggml.add_bos_token", true);
  };
  const Tokenizer tokenizer(tokenizer_data_from_gguf(make_file(keys)));
  const TokenizerData& data = tokenizer.data();
  EXPECT_EQ(data.source, "toy.gguf");
  EXPECT_EQ(data.pre, "gpt-2");
  EXPECT_EQ(data.tokens, keys.tokens);
  EXPECT_EQ(data.types, (std::vector<TokenType>{TokenType::kControl, TokenType::kNormal, TokenType::kNormal,
                                                TokenType::kNormal}));
  EXPECT_EQ(data.merges, keys.merges);
  EXPECT_EQ(data.bos, 0);
  EXPECT_EQ(data.eos, 1);
  EXPECT_EQ(data.eot, 2);
  EXPECT_TRUE(data.add_bos);
  EXPECT_TRUE(tokenizer.is_end_of_generation(1) && tokenizer.is_end_of_generation(2));
  EXPECT_FALSE(tokenizer.is_end_of_generation(0));
  EXPECT_EQ(tokenizer.encode("ab<s>", ControlTokens::kParse), (std::vector<TokenId>{3, 0}));
}

TEST(TokenizerGguf, BosIsAddedUnaskedOnlyForLlama3) {
  Keys keys;
  keys.more = [](GgufBuilder& builder) { builder.add("tokenizer.ggml.bos_token_id", std::uint32_t{0}); };
  EXPECT_FALSE(tokenizer_data_from_gguf(make_file(keys)).add_bos);
  keys.pre = "llama-bpe";
  EXPECT_TRUE(tokenizer_data_from_gguf(make_file(keys)).add_bos);
  keys.more = [](GgufBuilder&) {};
  EXPECT_FALSE(tokenizer_data_from_gguf(make_file(keys)).add_bos);
}

TEST(TokenizerGguf, BadFilesAreNamedWithTheKey) {
  const auto expect = [](const std::function<void(Keys&)>& change, const std::string& key) {
    Keys keys;
    change(keys);
    const GgufFile file = make_file(keys);
    try {
      const Tokenizer tokenizer(tokenizer_data_from_gguf(file));
      FAIL() << "no error about " << key;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kFormat);
      EXPECT_EQ(std::string(error.what()).find("toy.gguf: " + key), 0U) << error.what();
    }
  };
  const auto with_id = [](const char* key, std::int64_t id) {
    return [=](Keys& keys) { keys.more = [=](GgufBuilder& builder) { builder.add(key, id); }; };
  };
  expect([](Keys& k) { k.model.clear(); }, "tokenizer.ggml.model is missing");
  expect([](Keys& k) { k.model = "llama"; }, "tokenizer.ggml.model 'llama' is not supported");
  expect([](Keys& k) { k.pre.clear(); }, "tokenizer.ggml.pre is missing");
  expect([](Keys& k) { k.pre = "unheard-of"; }, "tokenizer.ggml.pre 'unheard-of' is not supported");
  expect([](Keys& k) { k.tokens.clear(); }, "tokenizer.ggml.tokens is missing");
  expect([](Keys& k) { k.types.clear(); }, "tokenizer.ggml.token_type is missing");
  expect([](Keys& k) { k.types.pop_back(); }, "tokenizer.ggml.token_type has 3 entries");
  expect([](Keys& k) { k.types[2] = 0; }, "tokenizer.ggml.token_type[2] is 0");
  expect([](Keys& k) { k.types[2] = 7; }, "tokenizer.ggml.token_type[2] is 7");
  expect([](Keys& k) { k.merges.clear(); }, "tokenizer.ggml.merges is missing");
  expect([](Keys& k) { k.merges[0] = "ab"; }, "tokenizer.ggml.merges[0]");
  expect(with_id("tokenizer.ggml.bos_token_id", 4), "tokenizer.ggml.bos_token_id is 4");
  expect(with_id("tokenizer.ggml.eos_token_id", -1), "tokenizer.ggml.eos_token_id is -1");
  expect(with_id("tokenizer.ggml.eot_token_id", std::int64_t{1} << 32),
         "tokenizer.ggml.eot_token_id is 4294967296");
}

}  // namespace
}  // namespace kvasir
