// Guesses of the next tokens, from what followed when the text last stood as it does now (prompt lookup
// decoding, Saxena 2023).
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

}  // namespace kvasir

#endif  // KVASIR_ENGINE_NGRAM_DRAFT_H_
