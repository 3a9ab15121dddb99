#include "text/special_tokens.h"

namespace kvasir {

const std::uint32_t* SpecialTokens::child(std::uint32_t node, char byte) const {
  for (const auto& [label, index] : nodes_[node].next) {
    if (label == byte) return &index;
  }
  return nullptr;
}

void SpecialTokens::add(std::string_view spelling, TokenId token) {
  if (spelling.empty()) return;
  first_bytes_.set(static_cast<unsigned char>(spelling[0]));
  std::uint32_t node = 0;
  for (const char byte : spelling) {
    if (const std::uint32_t* found = child(node, byte)) {
      node = *found;
      continue;
    }
    const auto created = static_cast<std::uint32_t>(nodes_.size());
    nodes_[node].next.emplace_back(byte, created);
    nodes_.emplace_back();
    node = created;
  }
  if (nodes_[node].token < 0) nodes_[node].token = token;
}

std::vector<SpecialTokens::Match> SpecialTokens::find(std::string_view text) const {
  std::vector<Match> matches;
  if (first_bytes_.none()) return matches;
  for (std::size_t begin = 0; begin < text.size();) {
    if (!first_bytes_[static_cast<unsigned char>(text[begin])]) {
      ++begin;
      continue;
    }
    Match longest{begin, begin, -1};
    std::uint32_t node = 0;
    for (std::size_t i = begin; i < text.size(); ++i) {
      const std::uint32_t* found = child(node, text[i]);
      if (!found) break;
      node = *found;
      if (nodes_[node].token >= 0) longest = {begin, i + 1, nodes_[node].token};
    }
    if (longest.token >= 0) matches.push_back(longest);
    begin = longest.token >= 0 ? longest.end : begin + 1;
  }
  return matches;
}

}  // namespace kvasir
