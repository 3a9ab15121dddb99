// The tokenizer that a GGUF file carries (keys: GGUF specification, section "Tokenizer").
#include <string>
#include <utility>

#include "formats/gguf.h"
#include "kvasir/error.h"
#include "kvasir/tokenizer.h"

namespace kvasir {
namespace {

[[noreturn]] void fail(const GgufFile& file, const std::string& what) {
  throw Error(ErrorKind::kFormat, file.path() + ": " + what);
}

std::vector<std::string> get_strings(const GgufFile& file, const char* key) {
  const auto views = file.find_string_array(key);
  if (!views) fail(file, std::string(key) + " is missing");
  return {views->begin(), views->end()};
}

std::optional<TokenId> find_id(const GgufFile& file, const char* key, std::size_t vocab_size) {
  const std::optional<std::int64_t> id = file.find_int(key);
  if (!id) return std::nullopt;
  if (*id < 0 || static_cast<std::uint64_t>(*id) >= vocab_size) {
    fail(file, std::string(key) + " is " + std::to_string(*id) + ", outside the vocabulary of " +
                   std::to_string(vocab_size) + " tokens");
  }
  return static_cast<TokenId>(*id);
}

std::vector<TokenType> get_types(const GgufFile& file) {
  constexpr const char* kKey = "tokenizer.ggml.token_type";
  const auto numbers = file.find_int_array(kKey);
  if (!numbers) fail(file, std::string(kKey) + " is missing");
  std::vector<TokenType> types;
  types.reserve(numbers->size());
  for (std::size_t i = 0; i < numbers->size(); ++i) {
    const std::int64_t number = (*numbers)[i];
    if (number < 1 || number > 6) {
      fail(file, std::string(kKey) + "[" + std::to_string(i) + "] is " + std::to_string(number) +
                     ", which is no token type (1 to 6)");
    }
    types.push_back(static_cast<TokenType>(number));
  }
  return types;
}

}  // namespace

TokenizerData tokenizer_data_from_gguf(const GgufFile& file) {
  const auto model = file.find_string("tokenizer.ggml.model");
  if (!model) fail(file, "tokenizer.ggml.model is missing: the file carries no tokenizer");
  if (*model != "gpt2") {
    fail(file, "tokenizer.ggml.model '" + std::string(*model) +
                   "' is not supported; supported: gpt2 (byte-level BPE)");
  }
  const auto pre = file.find_string("tokenizer.ggml.pre");
  if (!pre) fail(file, "tokenizer.ggml.pre is missing: make the file again with a current converter");
  TokenizerData data;
  data.source = file.path();
  data.pre = *pre;
  data.tokens = get_strings(file, "tokenizer.ggml.tokens");
  data.types = get_types(file);
  data.merges = get_strings(file, "tokenizer.ggml.merges");
  data.bos = find_id(file, "tokenizer.ggml.bos_token_id", data.tokens.size());
  data.eos = find_id(file, "tokenizer.ggml.eos_token_id", data.tokens.size());
  data.eot = find_id(file, "tokenizer.ggml.eot_token_id", data.tokens.size());
  // Llama 3 files from before the key existed rely on BOS being added.
  data.add_bos = file.find_bool("tokenizer.ggml.add_bos_token").value_or(data.pre == "llama-bpe" && data.bos);
  return data;
}

}  // namespace kvasir
