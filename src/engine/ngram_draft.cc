#include "engine/ngram_draft.h"

#include <algorithm>

namespace kvasir {

void ngram_draft(std::span<const TokenId> tokens, std::int64_t count, std::vector<TokenId>& draft) {
  draft.clear();
  for (const std::size_t n : {3U, 2U}) {
    if (tokens.size() <= n) continue;
    const std::span<const TokenId> end = tokens.last(n);
    for (std::size_t at = tokens.size() - n; at-- > 0;) {
      if (!std::equal(end.begin(), end.end(), tokens.begin() + static_cast<std::ptrdiff_t>(at))) continue;
      const std::span<const TokenId> after = tokens.subspan(at + n);
      for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i)
        draft.push_back(after[i % after.size()]);
      return;
    }
  }
}

void DraftLength::note(std::int64_t drafted, std::int64_t accepted) {
  if (drafted == 0) return;
  constexpr double kWeight = 0.2;  // of the newest; the others together 0.8
  // A guess costs about a fifth of a token that is computed alone, with the weights at hand.
  constexpr double kWorthwhile = 0.15;
  accepted_share_ +=
      kWeight * (static_cast<double>(accepted) / static_cast<double>(drafted) - accepted_share_);
  off_ = accepted_share_ < kWorthwhile;
  length_ = accepted == drafted ? std::min(2 * length_, kMost) : std::max<std::int64_t>(length_ / 2, 1);
}

}  // namespace kvasir
