#include "text/bpe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace kvasir {
namespace {

// The definition, word for word, in quadratic time.
std::vector<TokenId> merge_plainly(const std::vector<Merge>& merges, std::vector<TokenId> symbols) {
  while (true) {
    std::size_t best_rank = merges.size(), best_place = 0;
    for (std::size_t i = 0; i + 1 < symbols.size(); ++i) {
      for (std::size_t rank = 0; rank < best_rank; ++rank) {
        if (merges[rank].left == symbols[i] && merges[rank].right == symbols[i + 1]) {
          best_rank = rank;
          best_place = i;
        }
      }
    }
    if (best_rank == merges.size()) return symbols;
    symbols[best_place] = merges[best_rank].result;
    symbols.erase(symbols.begin() + static_cast<std::ptrdiff_t>(best_place) + 1);
  }
}

// Random vocabularies with long chains of merges; 0..letters-1 are the letters.
std::vector<Merge> random_merges(std::mt19937& random, TokenId letters, TokenId count) {
  std::vector<Merge> merges;
  for (TokenId result = letters; result < letters + count; ++result) {
    const auto pick = [&] { return static_cast<TokenId>(random() % static_cast<unsigned>(result)); };
    merges.push_back({pick(), pick(), result});
  }
  return merges;
}

TEST(Bpe, SameAsTheDefinition) {
  const unsigned seed = 20261130;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 4000; ++round) {
    const TokenId letters = 1 + static_cast<TokenId>(random() % 4);
    std::vector<Merge> merges = random_merges(random, letters, static_cast<TokenId>(random() % 30));
    if (random() % 2)
      std::shuffle(merges.begin(), merges.end(), random);  // merges need not be in order of size
    const Bpe bpe(merges);
    Bpe::Workspace workspace;
    std::vector<TokenId> symbols(random() % 80);
    for (TokenId& symbol : symbols) symbol = static_cast<TokenId>(random() % static_cast<unsigned>(letters));
    const std::vector<TokenId> expected = merge_plainly(merges, symbols);
    bpe.merge(symbols, workspace);
    ASSERT_EQ(symbols, expected) << "round " << round;
  }
}

TEST(Bpe, OfEqualMergesTheBetterRankCounts) {
  const Bpe bpe({{0, 1, 2}, {1, 0, 3}, {0, 1, 4}});
  Bpe::Workspace workspace;
  std::vector<TokenId> symbols = {1, 0, 1};
  bpe.merge(symbols, workspace);
  EXPECT_EQ(symbols, (std::vector<TokenId>{1, 2}));
}

TEST(Bpe, NothingToDo) {
  const Bpe none({});
  Bpe::Workspace workspace;
  for (std::size_t n : {0, 1, 2, 100}) {
    std::vector<TokenId> symbols(n, 5);
    none.merge(symbols, workspace);
    EXPECT_EQ(symbols, std::vector<TokenId>(n, 5));
  }
}

}  // namespace
}  // namespace kvasir
