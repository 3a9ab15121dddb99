#include "text/smollm2_chat.h"

#include <string>
#include <utility>

namespace kvasir {
namespace {

// tokenizer_config.json of HuggingFaceTB/SmolLM2-135M-Instruct.
constexpr std::string_view kSource =
    R"({% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %})";

}  // namespace

bool Smollm2ChatTemplate::is_source(std::string_view template_source) { return template_source == kSource; }

std::vector<TextSegment> Smollm2ChatTemplate::render(std::span<const ChatMessage> messages,
                                                     bool add_generation_prompt) const {
  std::vector<TextSegment> segments;
  const auto write = [&](std::string text) { segments.push_back({std::move(text), ControlTokens::kParse}); };
  const auto quote = [&](const std::string& text) { segments.push_back({text, ControlTokens::kAsText}); };
  if (!messages.empty() && messages[0].role != "system") {
    write(
        "<|im_start|>system\n"
        "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n");
  }
  for (const ChatMessage& message : messages) {
    write("<|im_start|>");
    quote(message.role);
    write("\n");
    quote(message.content);
    write("<|im_end|>\n");
  }
  if (add_generation_prompt) write("<|im_start|>assistant\n");
  return segments;
}

}  // namespace kvasir
