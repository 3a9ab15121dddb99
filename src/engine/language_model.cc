#include "kvasir/language_model.h"

#include <fmt/format.h>

#include <utility>

#include "base/mapped_file.h"
#include "base/sha256.h"
#include "formats/gguf.h"
#include "kvasir/error.h"
#include "kvasir/version.h"

namespace kvasir {

LanguageModel LanguageModel::load(const std::string& path, Activations activations, Executor& executor,
                                  const LoadProgress& progress) {
  return {GgufFile::open(path), activations, executor, progress};
}

LanguageModel::LanguageModel(const GgufFile& file, Activations activations, Executor& executor,
                             const LoadProgress& progress)
    : path_(file.path()),
      model_(Model::from_gguf(file, activations, executor, progress)),
      tokenizer_(tokenizer_data_from_gguf(file)),
      chat_template_source_(file.find_string("tokenizer.chat_template").value_or("")) {
  if (tokenizer_.vocab_size() != model_.config().vocab_size) {
    throw Error(ErrorKind::kFormat,
                fmt::format("{}: token_embd.weight has {} rows, but tokenizer.ggml.tokens {} entries", path_,
                            model_.config().vocab_size, tokenizer_.vocab_size()));
  }
  try {
    chat_template_ = make_chat_template(chat_template_source_);
  } catch (const Error&) {
    // Only chat needs it: chat_template() says what is wrong when it is asked for.
  }
}

const ChatTemplate& LanguageModel::chat_template() const {
  if (chat_template_ != nullptr) return *chat_template_;
  try {
    make_chat_template(chat_template_source_);
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("{}: {}", path_, error.what()));
  }
  throw Error(ErrorKind::kRuntime,
              fmt::format("{}: the chat template was refused once and accepted now", path_));
}

std::vector<TokenId> LanguageModel::encode_prompt(std::string_view text, ControlTokens control) const {
  std::vector<TokenId> ids = tokenizer_.encode(text, control);
  const TokenizerData& data = tokenizer_.data();
  if (data.add_bos && data.bos.has_value()) ids.insert(ids.begin(), *data.bos);
  if (ids.empty()) {
    throw Error(ErrorKind::kInvalidArgument,
                "the prompt is empty, and this model has no beginning-of-sequence token to start from");
  }
  return ids;
}

std::string LanguageModel::fingerprint(KvType kv_type) const {
  Sha256 hash;
  hash.update(MappedFile::open(path_).bytes());
  const std::string choices = fmt::format("arithmetic {} activations {} kv {}", kArithmeticVersion,
                                          static_cast<int>(model_.activations()), static_cast<int>(kv_type));
  hash.update(std::as_bytes(std::span(choices)));
  return hash.hex_digest().substr(0, 16);
}

}  // namespace kvasir
