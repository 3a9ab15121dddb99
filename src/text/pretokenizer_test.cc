#include "text/pretokenizer.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "text/test_data.h"

namespace kvasir {
namespace {

std::vector<std::string> split(std::string_view rule, std::string_view text) {
  const Pretokenizer pretokenizer(*find_split_rule(rule));
  Pretokenizer::Splitter splitter(pretokenizer);
  std::vector<std::string> pieces;
  for (const std::string_view piece : splitter.split(text)) pieces.emplace_back(piece);
  return pieces;
}

using Pieces = std::vector<std::string>;

TEST(Pretokenizer, CutsAsTheReferenceDoes) {
  struct Case {
    std::string text;
    Pieces gpt2, llama3, qwen2;
  };
  const std::vector<Case> cases = {
      {"a  b", {"a", " ", " b"}, {"a", " ", " b"}, {"a", " ", " b"}},
      {"x \r\n\r\n  y",
       {"x", " \r\n\r\n ", " y"},
       {"x", " \r\n\r\n", " ", " y"},
       {"x", " \r\n\r\n", " ", " y"}},
      {"12345678", {"12345678"}, {"123", "456", "78"}, {"1", "2", "3", "4", "5", "6", "7", "8"}},
      {"IT'S we'LL",
       {"IT", "'", "S", " we", "'", "LL"},
       {"IT", "'S", " we", "'LL"},
       {"IT", "'S", " we", "'LL"}},
      {"a\tb", {"a", "\t", "b"}, {"a", "\tb"}, {"a", "\tb"}},
      {"def f():\n    return  x",
       {"def", " f", "():", "\n   ", " return", " ", " x"},
       {"def", " f", "():\n", "   ", " return", " ", " x"},
       {"def", " f", "():\n", "   ", " return", " ", " x"}},
      {"e\u0301x", {"e", "\u0301", "x"}, {"e", "\u0301x"}, {"e", "\u0301x"}},
      {"\u0966\u0967\u0968\u0969",
       {"\u0966\u0967\u0968\u0969"},
       {"\u0966\u0967\u0968", "\u0969"},
       {"\u0966", "\u0967", "\u0968", "\u0969"}},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(split("gpt-2", c.text), c.gpt2);
    EXPECT_EQ(split("llama-bpe", c.text), c.llama3);
    EXPECT_EQ(split("qwen2", c.text), c.qwen2);
  }
}

TEST(Pretokenizer, SmollmTakesEachDigitAloneAndEndsLookAheadThere) {
  EXPECT_EQ(split("smollm", "a12 b"), (Pieces{"a", "1", "2", " b"}));
  EXPECT_EQ(split("smollm", "  1"), (Pieces{"  ", "1"}));
  EXPECT_EQ(split("gpt-2", "  1"), (Pieces{" ", " 1"}));
}

TEST(Pretokenizer, EmptyText) {
  for (const SplitRule& rule : split_rules()) EXPECT_EQ(split(rule.name, ""), Pieces{});
}

TEST(Pretokenizer, UnknownRule) { EXPECT_EQ(find_split_rule("gpt-5"), nullptr); }

TEST(Pretokenizer, RandomTextsAsHuggingFaceTokenizersCutsThem) {
  const std::size_t lines = for_each_json_line("pretokenizer/splits.jsonl", [](simdjson::dom::element line) {
    const std::string text = json_string(line["text"]);
    for (const SplitRule& rule : split_rules()) {
      std::vector<TokenId> ends;
      std::size_t end = 0;
      for (const std::string& piece : split(rule.name, text)) {
        end += piece.size();
        ends.push_back(static_cast<TokenId>(end));
      }
      EXPECT_EQ(ends, json_ids(line[rule.name])) << rule.name << " on " << simdjson::to_string(line);
    }
  });
  EXPECT_EQ(lines, 601U);
}

// Counts and sums of all letters and numbers of Unicode 16, from the package unicodedata2 16.0.0.
TEST(Pretokenizer, ClassesAreThoseOfUnicode16) {
  const Pretokenizer pretokenizer(*find_split_rule("gpt-2"));
  Pretokenizer::Splitter splitter(pretokenizer);
  std::uint64_t letters = 0, letter_sum = 0, numbers = 0, number_sum = 0;
  std::vector<std::uint32_t> spaces;
  for (std::uint32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string character;
    const auto add = [&](std::uint32_t byte) { character += static_cast<char>(byte); };
    if (c < 0x80) {
      add(c);
    } else if (c < 0x800) {
      add(0xC0 | c >> 6), add(0x80 | (c & 63));
    } else if (c < 0x10000) {
      add(0xE0 | c >> 12), add(0x80 | (c >> 6 & 63)), add(0x80 | (c & 63));
    } else {
      add(0xF0 | c >> 18), add(0x80 | (c >> 12 & 63)), add(0x80 | (c >> 6 & 63)), add(0x80 | (c & 63));
    }
    if (splitter.split("a" + character).size() == 1) {
      ++letters, letter_sum += c;
    } else if (splitter.split("1" + character).size() == 1) {
      ++numbers, number_sum += c;
    } else if (splitter.split("!" + character).size() != 1) {
      spaces.push_back(c);
    }
  }
  EXPECT_EQ(letters, 141028U);
  EXPECT_EQ(letter_sum, 15240929258U);
  EXPECT_EQ(numbers, 1911U);
  EXPECT_EQ(number_sum, 110651895U);
  EXPECT_EQ(spaces, (std::vector<std::uint32_t>{0x9,    0xA,    0xB,    0xC,    0xD,    0x20,   0x85,
                                                0xA0,   0x1680, 0x2000, 0x2001, 0x2002, 0x2003, 0x2004,
                                                0x2005, 0x2006, 0x2007, 0x2008, 0x2009, 0x200A, 0x2028,
                                                0x2029, 0x202F, 0x205F, 0x3000}));
}

std::string repeat(std::string_view unit, std::size_t times) {
  std::string text;
  for (std::size_t i = 0; i < times; ++i) text += unit;
  return text;
}

TEST(Pretokenizer, LongRunsAreCutCorrectlyAndFast) {
  const std::size_t n = 1'000'000;
  struct Case {
    std::string run, end;
    std::size_t gpt2_pieces, llama3_pieces;
  };
  const std::vector<Case> cases = {
      {repeat("a", n), "", 1, 1},
      {repeat("\u6F22", n), "", 1, 1},
      {repeat("_", n), "", 1, 1},
      {repeat(" ", n), "", 1, 1},
      {repeat(" ", n), "x", 2, 2},
      {repeat("\u3000", n), "x", 3, 2},
      {repeat("\r\n", n), "x", 3, 2},
      {repeat("\n", n), " x", 2, 2},
      {repeat("!", n), repeat("\n", n), 2, 1},
      {repeat("\n ", n), "x", 2, 2},
      {repeat("1", n), "", 1, (n + 2) / 3},
  };
  for (const Case& c : cases) {
    for (const auto& [rule, expected] :
         {std::pair{"gpt-2", c.gpt2_pieces}, std::pair{"llama-bpe", c.llama3_pieces}}) {
      const Pretokenizer pretokenizer(*find_split_rule(rule));
      Pretokenizer::Splitter splitter(pretokenizer);
      const std::string text = c.run + c.end;
      const double start = thread_cpu_seconds();
      const std::size_t pieces = splitter.split(text).size();
      const double seconds = thread_cpu_seconds() - start;
      EXPECT_EQ(pieces, expected) << rule << " on a run of '" << c.run.substr(0, 6) << "' and '"
                                  << c.end.substr(0, 6) << "'";
      EXPECT_LT(seconds, 1.0) << rule << " on a run of '" << c.run.substr(0, 6) << "'";
    }
  }
}

}  // namespace
}  // namespace kvasir
