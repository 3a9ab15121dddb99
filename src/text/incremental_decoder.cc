#include <string>
#include <utility>

#include "base/utf8.h"
#include "kvasir/tokenizer.h"

namespace kvasir {

IncrementalDecoder::IncrementalDecoder(const Tokenizer& tokenizer, bool skip_control)
    : tokenizer_(&tokenizer), skip_control_(skip_control) {}

std::string IncrementalDecoder::push(TokenId id) {
  return push_bytes(tokenizer_->decode_bytes(std::span(&id, 1), skip_control_));
}

std::string IncrementalDecoder::push_bytes(std::string_view bytes) {
  pending_ += bytes;
  const std::size_t complete = complete_utf8_prefix(pending_);
  std::string text = replace_invalid_utf8(std::string_view(pending_).substr(0, complete));
  pending_.erase(0, complete);
  return text;
}

std::string IncrementalDecoder::finish() { return replace_invalid_utf8(std::exchange(pending_, {})); }

}  // namespace kvasir
