#include "kvasir/stop_matcher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "kvasir/error.h"
#include "kvasir/tokenizer.h"

namespace kvasir {
namespace {

using Strings = std::vector<std::string>;

struct Result {
  std::string text;
  std::optional<std::size_t> stop;
  Strings pieces;  // what each push gave, then finish
};

Result run(const Strings& stops, const Strings& pieces) {
  StopMatcher matcher(stops);
  Result result;
  for (const std::string& piece : pieces) result.pieces.push_back(matcher.push(piece));
  result.pieces.push_back(matcher.finish());
  for (const std::string& piece : result.pieces) result.text += piece;
  result.stop = matcher.stopped();
  return result;
}

TEST(StopMatcher, HoldsBackAStopThatIsSpreadOverPieces) {
  const Result r = run({"DEFGHIJ"}, {"ABC", "DEF", "G", "HI", "J"});
  EXPECT_EQ(r.text, "ABC");
  EXPECT_EQ(r.stop, 0U);
  EXPECT_EQ(r.pieces, (Strings{"ABC", "", "", "", "", ""}));
}

TEST(StopMatcher, ReleasesWhatDidNotBecomeAStop) {
  const Result r = run({"DEFGHIJ"}, {"DEF", "G", "HX"});
  EXPECT_EQ(r.text, "DEFGHX");
  EXPECT_EQ(r.stop, std::nullopt);
  EXPECT_EQ(r.pieces, (Strings{"", "", "DEFGHX", ""}));
  EXPECT_EQ(run({"DEFGHIJ"}, {"xDEF"}).pieces, (Strings{"x", "DEF"}));
}

TEST(StopMatcher, OverlapsItself) {
  const Result r = run({"aab"}, {"a", "a", "a", "b"});
  EXPECT_EQ(r.text, "a");
  EXPECT_EQ(r.stop, 0U);
  EXPECT_EQ(r.pieces, (Strings{"", "", "a", "", ""}));
}

TEST(StopMatcher, SeveralStops) {
  const Result r = run({"##", "#!"}, {"x", "#", "!y"});
  EXPECT_EQ(r.text, "x");
  EXPECT_EQ(r.stop, 1U);
}

TEST(StopMatcher, StopAcrossWords) {
  const Result r = run({"own fox"}, {"The", " quick", " brown", " fox"});
  EXPECT_EQ(r.text, "The quick br");
  EXPECT_EQ(r.pieces, (Strings{"The", " quick", " br", "", ""}));
  EXPECT_EQ(r.stop, 0U);
}

TEST(StopMatcher, TheStopCompleteFirstWinsThenTheLongest) {
  EXPECT_EQ(run({"abcd", "bc"}, {"abcd"}).text, "a");
  EXPECT_EQ(run({"bc", "abc"}, {"xabcd"}).text, "x");
  EXPECT_EQ(run({"bc", "abc"}, {"xabcd"}).stop, 1U);
  EXPECT_EQ(run({"abc", "abc"}, {"abc"}).stop, 0U);
}

TEST(StopMatcher, NothingComesAfterAStop) {
  StopMatcher matcher({"stop"});
  EXPECT_EQ(matcher.push("a stop b"), "a ");
  EXPECT_EQ(matcher.push("more stop"), "");
  EXPECT_EQ(matcher.finish(), "");
  EXPECT_EQ(matcher.stopped(), 0U);
}

TEST(StopMatcher, WithoutStopsEverythingGoesOutAtOnce) {
  EXPECT_EQ(run({}, {"a", "", "b"}).pieces, (Strings{"a", "", "b", ""}));
  EXPECT_EQ(run({"b!"}, {"b", "", "!"}).pieces, (Strings{"", "", "", ""}));
}

TEST(StopMatcher, RefusesStopsThatCannotBeMeant) {
  const auto kind_of = [](const Strings& stops) {
    try {
      StopMatcher matcher(stops);
    } catch (const Error& error) {
      return std::optional(error.kind());
    }
    return std::optional<ErrorKind>();
  };
  const auto bad = std::optional(ErrorKind::kInvalidArgument);
  EXPECT_EQ(kind_of({"a", ""}), bad);
  EXPECT_EQ(kind_of({"\xA9"}), bad);
  EXPECT_EQ(kind_of(Strings(65, "a")), bad);
  EXPECT_EQ(kind_of({std::string(4097, 'a')}), bad);
  EXPECT_EQ(kind_of(Strings(64, std::string(4096, 'a'))), std::nullopt);
}

TEST(StopMatcher, ACharacterThatComesByteByByte) {
  TokenizerData data;
  data.pre = "gpt-2";
  data.tokens = {"a"};
  data.types = {TokenType::kNormal};
  const Tokenizer tokenizer(data);
  IncrementalDecoder decoder(tokenizer, true);
  StopMatcher matcher({"\u00E9"});
  std::string text;
  for (const char* bytes : {"caf", "\xC3", "\xA9", "!"}) text += matcher.push(decoder.push_bytes(bytes));
  text += matcher.push(decoder.finish());
  text += matcher.finish();
  EXPECT_EQ(text, "caf");
  EXPECT_EQ(matcher.stopped(), 0U);
}

// Against the definition: after each byte, look for a stop at the end; hold back the longest suffix that a
// stop begins with.
TEST(StopMatcher, SameAsTheDefinitionHoweverTheTextIsCut) {
  const unsigned seed = 11;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const auto word = [&](std::size_t n) {
    std::string text;
    while (n-- > 0) text += static_cast<char>('a' + random() % 2);
    return text;
  };
  for (int round = 0; round < 3000; ++round) {
    Strings stops(random() % 4);
    for (std::string& stop : stops) stop = word(1 + random() % 6);
    const std::string text = word(random() % 40);
    std::size_t end = text.size();
    std::size_t longest = 0;
    for (std::size_t i = 1; i <= text.size() && longest == 0; ++i) {
      for (const std::string& stop : stops) {
        if (std::string_view(text).substr(0, i).ends_with(stop)) longest = std::max(longest, stop.size());
      }
      if (longest > 0) end = i - longest;
    }
    StopMatcher matcher(stops);
    std::string out;
    for (std::size_t i = 0; i < text.size() && !matcher.stopped();) {
      const std::size_t length = std::min(1 + random() % 5, text.size() - i);
      out += matcher.push(std::string_view(text).substr(i, length));
      i += length;
      if (matcher.stopped()) break;
      std::size_t hold = 0;
      for (const std::string& stop : stops) {
        for (std::size_t n = 1; n < stop.size(); ++n) {
          if (std::string_view(text).substr(0, i).ends_with(stop.substr(0, n))) hold = std::max(hold, n);
        }
      }
      ASSERT_EQ(out.size(), i - hold);
    }
    out += matcher.finish();
    ASSERT_EQ(out, text.substr(0, end));
    ASSERT_EQ(matcher.stopped().has_value(), longest > 0);
    if (longest > 0) {
      ASSERT_EQ(stops[*matcher.stopped()].size(), longest);
    }
  }
}

}  // namespace
}  // namespace kvasir
