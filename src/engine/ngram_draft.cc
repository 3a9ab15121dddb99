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

}  // namespace kvasir
