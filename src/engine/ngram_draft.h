// Guesses of the next tokens, from what followed when the text last stood as it does now (prompt lookup
// decoding, Saxena 2023), and how many of them to make.
#ifndef KVASIR_ENGINE_NGRAM_DRAFT_H_
#define KVASIR_ENGINE_NGRAM_DRAFT_H_

#include <cstdint>
#include <span>
#include <vector>

#include "kvasir/token.h"

namespace kvasir {

// What followed the latest earlier place where the text had the same last tokens (three, or else two) as at
// its end: `count` tokens, or none if there is no such place. Where the end is reached they go on as from
// that place: a text that repeats itself is expected to do so.
void ngram_draft(std::span<const TokenId> tokens, std::int64_t count, std::vector<TokenId>& draft);

// How many tokens to guess: more while guesses are right, fewer while they are wrong, none for good where
// they cost more than they bring.
class DraftLength {
 public:
  std::int64_t next() const { return off_ ? 0 : length_; }
  void note(std::int64_t drafted, std::int64_t accepted);

 private:
  static constexpr std::int64_t kFirst = 4, kMost = 16;
  std::int64_t length_ = kFirst;
  double accepted_share_ = 0.5;  // lately
  bool off_ = false;
};

}  // namespace kvasir

#endif  // KVASIR_ENGINE_NGRAM_DRAFT_H_
