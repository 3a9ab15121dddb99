// A model file, ready for use: weights, tokenizer and chat template.
#ifndef KVASIR_LANGUAGE_MODEL_H_
#define KVASIR_LANGUAGE_MODEL_H_

#include <memory>
#include <string>

#include "kvasir/chat.h"
#include "kvasir/executor.h"
#include "kvasir/model.h"
#include "kvasir/tokenizer.h"

namespace kvasir {

class GgufFile;

// Immutable once loaded; may be shared by threads that each have their own Executor.
class LanguageModel {
 public:
  // Error(kIo) or Error(kFormat), naming the file.
  static LanguageModel load(const std::string& path, Activations activations, Executor& executor,
                            const LoadProgress& progress = {});

  const std::string& path() const { return path_; }
  const Model& model() const { return model_; }
  const Tokenizer& tokenizer() const { return tokenizer_; }
  bool has_chat_template() const { return chat_template_ != nullptr; }  // one that can be rendered
  // Error(kInvalidArgument) if the file has no chat template, or one that cannot be rendered.
  const ChatTemplate& chat_template() const;

  // Ids of a prompt as generate takes it: with BOS in front if the model wants one.
  // Error(kInvalidArgument) if that leaves no token at all.
  std::vector<TokenId> encode_prompt(std::string_view text, ControlTokens control) const;

  // What decides the numbers: the file's bytes, the version of the arithmetic and the representation of
  // activations and cache. Equal fingerprints, prompt and seed give equal tokens. Reads the whole file. 16
  // hexadecimal digits.
  std::string fingerprint(KvType kv_type) const;

 private:
  LanguageModel(const GgufFile& file, Activations activations, Executor& executor,
                const LoadProgress& progress);

  std::string path_;
  Model model_;
  Tokenizer tokenizer_;
  std::string chat_template_source_;
  std::unique_ptr<ChatTemplate> chat_template_;  // nullptr if there is none that we can render
};

}  // namespace kvasir

#endif  // KVASIR_LANGUAGE_MODEL_H_
