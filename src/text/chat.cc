#include "kvasir/chat.h"

#include "kvasir/error.h"
#include "text/smollm2_chat.h"

namespace kvasir {

std::string ChatTemplate::render_text(std::span<const ChatMessage> messages,
                                      bool add_generation_prompt) const {
  std::string text;
  for (const TextSegment& segment : render(messages, add_generation_prompt)) text += segment.text;
  return text;
}

std::vector<TokenId> ChatTemplate::encode(const Tokenizer& tokenizer, std::span<const ChatMessage> messages,
                                          bool add_generation_prompt) const {
  std::vector<TokenId> ids = tokenizer.encode(render(messages, add_generation_prompt));
  const TokenizerData& data = tokenizer.data();
  if (data.add_bos && (ids.empty() || ids[0] != *data.bos)) ids.insert(ids.begin(), *data.bos);
  return ids;
}

std::unique_ptr<ChatTemplate> make_chat_template(std::string_view template_source) {
  if (template_source.empty()) {
    throw Error(
        ErrorKind::kInvalidArgument,
        "the model has no chat template (tokenizer.chat_template): use it for completions, not for chat");
  }
  if (Smollm2ChatTemplate::is_source(template_source)) return std::make_unique<Smollm2ChatTemplate>();
  throw Error(ErrorKind::kInvalidArgument,
              "the model's chat template is not supported; supported: the template of SmolLM2-Instruct");
}

}  // namespace kvasir
