#include "base/utf8.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace kvasir {
namespace {

std::string encode(std::uint32_t c) {
  const auto byte = [](std::uint32_t b) { return static_cast<char>(b); };
  if (c < 0x80) return {byte(c)};
  if (c < 0x800) return {byte(0xC0 | c >> 6), byte(0x80 | (c & 63))};
  if (c < 0x10000) return {byte(0xE0 | c >> 12), byte(0x80 | (c >> 6 & 63)), byte(0x80 | (c & 63))};
  return {byte(0xF0 | c >> 18), byte(0x80 | (c >> 12 & 63)), byte(0x80 | (c >> 6 & 63)),
          byte(0x80 | (c & 63))};
}

const std::string kReplacement = "\xEF\xBF\xBD";

std::string repeat_replacement(int n) {
  std::string text;
  while (n-- > 0) text += kReplacement;
  return text;
}

TEST(Utf8, EveryScalarValueIsValidAndSurrogatesAreNot) {
  for (std::uint32_t c = 0; c < 0x110000; ++c) {
    const std::string text = encode(c);
    const bool surrogate = c >= 0xD800 && c < 0xE000;
    ASSERT_EQ(is_valid_utf8(text), !surrogate) << std::hex << c;
    ASSERT_EQ(replace_invalid_utf8(text), surrogate ? repeat_replacement(3) : text) << std::hex << c;
  }
  EXPECT_FALSE(is_valid_utf8(encode(0x110000)));
}

TEST(Utf8, ReplacesMaximalSubparts) {
  // Unicode 15, tables 3-8 to 3-11.
  const auto r = repeat_replacement;
  EXPECT_EQ(replace_invalid_utf8("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"), r(8) + "A");
  EXPECT_EQ(replace_invalid_utf8("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"), r(8) + "A");
  EXPECT_EQ(replace_invalid_utf8("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"), r(5) + "A" + r(2) + "B");
  EXPECT_EQ(replace_invalid_utf8("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), r(4) + "A");
  EXPECT_EQ(replace_invalid_utf8("ok\xF0\x9F\x98"), "ok" + r(1));
  EXPECT_EQ(replace_invalid_utf8("\xF5\x80\x80\x80\xF8\x88"), r(6));
  EXPECT_EQ(replace_invalid_utf8(""), "");
  // The fast path for ASCII must stop at the right byte whatever the alignment.
  for (std::size_t before = 0; before < 20; ++before) {
    const std::string ascii(before, 'x');
    EXPECT_EQ(replace_invalid_utf8(ascii + "\xC3" + ascii), ascii + r(1) + ascii);
  }
}

TEST(Utf8, CompletePrefixEndsBeforeACharacterThatIsCut) {
  EXPECT_EQ(complete_utf8_prefix(""), 0U);
  EXPECT_EQ(complete_utf8_prefix("abc"), 3U);
  EXPECT_EQ(complete_utf8_prefix("a\xC3"), 1U);
  EXPECT_EQ(complete_utf8_prefix("a\xC3\xA9"), 3U);
  EXPECT_EQ(complete_utf8_prefix("a\xE6\x97"), 1U);
  EXPECT_EQ(complete_utf8_prefix("a\xF0\x9F\x98"), 1U);
  EXPECT_EQ(complete_utf8_prefix("\xF0\x9F\x98\x80"), 4U);
  // These can never become a character, so they are complete.
  EXPECT_EQ(complete_utf8_prefix("a\xED\xA0"), 3U);
  EXPECT_EQ(complete_utf8_prefix("a\xC0"), 2U);
  EXPECT_EQ(complete_utf8_prefix("a\xFF"), 2U);
  EXPECT_EQ(complete_utf8_prefix("\x80\x80\x80\x80"), 4U);
  EXPECT_EQ(complete_utf8_prefix("\xC3\xA9\x80"), 3U);
}

// Replacing in two parts, cut at a complete prefix, gives the same as replacing the whole; and no longer
// prefix does for every continuation.
TEST(Utf8, CompletePrefixIsTheLongestSafeCut) {
  const unsigned seed = 20261130;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const std::vector<int> alphabet = {0x41, 0x80, 0x8F, 0x90, 0x9F, 0xA0, 0xBF, 0xC1, 0xC2, 0xDF,
                                     0xE0, 0xE1, 0xED, 0xEF, 0xF0, 0xF1, 0xF4, 0xF5, 0xFF};
  const auto random_bytes = [&](std::size_t n) {
    std::string text;
    while (text.size() < n) text += static_cast<char>(alphabet[random() % alphabet.size()]);
    return text;
  };
  for (int i = 0; i < 20000; ++i) {
    const std::string head = random_bytes(random() % 7), tail = random_bytes(random() % 5);
    const std::size_t cut = complete_utf8_prefix(head);
    const std::string whole = head + tail;
    ASSERT_EQ(replace_invalid_utf8(whole.substr(0, cut)) + replace_invalid_utf8(whole.substr(cut)),
              replace_invalid_utf8(whole));
    ASSERT_TRUE(is_valid_utf8(replace_invalid_utf8(whole)));
    ASSERT_EQ(is_valid_utf8(whole), replace_invalid_utf8(whole) == whole);
    if (cut == head.size()) continue;
    bool completes = false;  // some one to three bytes make a character of what was held back
    for (const char* rest :
         {"\x80", "\x90", "\xA0", "\x80\x80", "\x90\x80", "\xA0\x80", "\x90\x80\x80", "\x80\x80\x80"}) {
      completes = completes || is_valid_utf8(head.substr(cut) + rest);
    }
    ASSERT_TRUE(completes);
  }
}

}  // namespace
}  // namespace kvasir
