#ifndef KVASIR_TEXT_SMOLLM2_CHAT_H_
#define KVASIR_TEXT_SMOLLM2_CHAT_H_

#include <string_view>
#include <vector>

#include "kvasir/chat.h"

namespace kvasir {

// The template of SmolLM2-Instruct (ChatML with a system message of its own), written out.
class Smollm2ChatTemplate : public ChatTemplate {
 public:
  static bool is_source(std::string_view template_source);
  std::vector<TextSegment> render(std::span<const ChatMessage> messages,
                                  bool add_generation_prompt) const override;
};

}  // namespace kvasir

#endif  // KVASIR_TEXT_SMOLLM2_CHAT_H_
