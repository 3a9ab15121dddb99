// Conversations to the token ids that a model was trained on.
#ifndef KVASIR_CHAT_H_
#define KVASIR_CHAT_H_

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/tokenizer.h"

namespace kvasir {

struct ChatMessage {
  std::string role;
  std::string content;
};

// Immutable; may be used from several threads.
class ChatTemplate {
 public:
  virtual ~ChatTemplate() = default;

  // The conversation as text. What the template wrote itself is kParse, what came with the messages is
  // kAsText: no message can forge the end of its turn or another speaker. With add_generation_prompt, the
  // text ends where the assistant's answer begins. Error(kInvalidArgument) with the template's own words if
  // it refuses the conversation.
  virtual std::vector<TextSegment> render(std::span<const ChatMessage> messages,
                                          bool add_generation_prompt) const = 0;

  std::string render_text(std::span<const ChatMessage> messages, bool add_generation_prompt) const;
  // With BOS in front if the tokenizer wants one and the template has not written it.
  std::vector<TokenId> encode(const Tokenizer& tokenizer, std::span<const ChatMessage> messages,
                              bool add_generation_prompt) const;
};

// template_source: the model's Jinja template (GGUF key tokenizer.chat_template).
// Error(kInvalidArgument) if it is empty or not one that we can render.
std::unique_ptr<ChatTemplate> make_chat_template(std::string_view template_source);

}  // namespace kvasir

#endif  // KVASIR_CHAT_H_
