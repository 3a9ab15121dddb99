#include "text/special_tokens.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace kvasir {
namespace {

// "begin-end:token ..." of all matches.
std::string show(const std::vector<SpecialTokens::Match>& matches) {
  std::string text;
  for (const auto& m : matches) {
    text += std::to_string(m.begin) + "-" + std::to_string(m.end) + ":" + std::to_string(m.token) + " ";
  }
  return text;
}

TEST(SpecialTokens, LeftmostThenLongest) {
  SpecialTokens tokens;
  tokens.add("<a>", 1);
  tokens.add("<a><b>", 2);
  tokens.add("a><b><c>", 3);
  tokens.add("\n\n", 4);
  tokens.add("\n", 5);
  EXPECT_EQ(show(tokens.find("<a><b><c>")), "0-6:2 ");
  EXPECT_EQ(show(tokens.find("a><b><c>")), "0-8:3 ");
  EXPECT_EQ(show(tokens.find("<a><a><<a>")), "0-3:1 3-6:1 7-10:1 ");
  EXPECT_EQ(show(tokens.find("\n\n\n<a")), "0-2:4 2-3:5 ");
  EXPECT_EQ(show(tokens.find("")), "");
}

TEST(SpecialTokens, EmptySpellingIsIgnoredAndTheFirstOfEqualsStays) {
  SpecialTokens tokens;
  tokens.add("", 1);
  EXPECT_EQ(show(tokens.find("x")), "");
  tokens.add("x", 2);
  tokens.add("x", 3);
  EXPECT_EQ(show(tokens.find("xx")), "0-1:2 1-2:2 ");
}

TEST(SpecialTokens, SameAsTryingEverySpellingEverywhere) {
  const unsigned seed = 7;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const auto word = [&](std::size_t n) {
    std::string text;
    while (n-- > 0) text += static_cast<char>('a' + random() % 2);
    return text;
  };
  for (int round = 0; round < 300; ++round) {
    std::vector<std::string> spellings;
    SpecialTokens tokens;
    for (int i = 0; i < 5; ++i) {
      spellings.push_back(word(2 + random() % 5));
      tokens.add(spellings.back(), i);
    }
    const std::string text = word(40);
    std::vector<SpecialTokens::Match> expected;
    for (std::size_t i = 0; i < text.size();) {
      int best = -1;
      for (int s = 0; s < 5; ++s) {
        const auto length = [&](int k) { return spellings[static_cast<std::size_t>(k)].size(); };
        if (text.compare(i, length(s), spellings[static_cast<std::size_t>(s)]) == 0 &&
            (best < 0 || length(s) > length(best))) {
          best = s;
        }
      }
      const std::size_t length = best < 0 ? 1 : spellings[static_cast<std::size_t>(best)].size();
      if (best >= 0) expected.push_back({i, i + length, best});
      i += length;
    }
    ASSERT_EQ(show(tokens.find(text)), show(expected)) << text;
  }
}

}  // namespace
}  // namespace kvasir
