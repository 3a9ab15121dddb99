// Finds the spellings of special tokens in a text.
#ifndef KVASIR_TEXT_SPECIAL_TOKENS_H_
#define KVASIR_TEXT_SPECIAL_TOKENS_H_

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "kvasir/token.h"

namespace kvasir {

// A set of spellings as a trie of bytes.
class SpecialTokens {
 public:
  struct Match {
    std::size_t begin, end;  // bytes of the text
    TokenId token;
  };

  // Empty spellings are ignored; of equal ones the first stays.
  void add(std::string_view spelling, TokenId token);

  // All matches, in order: from each place that no earlier match covers, the longest spelling that begins
  // there. Time: length of the text times length of the longest spelling at worst; most bytes begin no
  // spelling.
  std::vector<Match> find(std::string_view text) const;

 private:
  struct Node {
    TokenId token = -1;                                  // whose spelling ends here; -1 for none
    std::vector<std::pair<char, std::uint32_t>> next{};  // byte, index of the child
  };
  const std::uint32_t* child(std::uint32_t node, char byte) const;

  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::bitset<256> first_bytes_;
};

}  // namespace kvasir

#endif  // KVASIR_TEXT_SPECIAL_TOKENS_H_
