#include "engine/ngram_draft.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvasir {
namespace {

using Tokens = std::vector<TokenId>;

Tokens draft(const Tokens& tokens, std::int64_t count) {
  Tokens found = {99};
  ngram_draft(tokens, count, found);
  return found;
}

TEST(NgramDraft, IsWhatFollowedTheLatestPlaceWithTheSameEnd) {
  EXPECT_EQ(draft({1, 2, 3, 4, 5, 1, 2, 3}, 2), (Tokens{4, 5}));
  EXPECT_EQ(draft({1, 2, 3, 4, 5, 1, 2, 3}, 8), (Tokens{4, 5, 1, 2, 3, 4, 5, 1}));
  EXPECT_EQ(draft({1, 2, 3, 7, 1, 2, 3, 8, 1, 2, 3}, 1), Tokens{8});
  EXPECT_EQ(draft({9, 2, 3, 4, 1, 2, 3}, 1), Tokens{4});              // two are enough
  EXPECT_EQ(draft({1, 2, 3, 4, 9, 2, 3, 5, 1, 2, 3}, 1), Tokens{4});  // three are better, though earlier
  EXPECT_EQ(draft({5, 5, 5, 5}, 3), (Tokens{5, 5, 5}));               // a place may overlap the end
}

TEST(NgramDraft, ThereMayBeNone) {
  EXPECT_EQ(draft({}, 4), Tokens{});
  EXPECT_EQ(draft({1, 2}, 4), Tokens{});
  EXPECT_EQ(draft({1, 2, 3, 4, 5}, 4), Tokens{});
  EXPECT_EQ(draft({1, 2, 3, 1, 2}, 0), Tokens{});
}

}  // namespace
}  // namespace kvasir
