#include "text/byte_alphabet.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

namespace kvasir {
namespace {

TEST(ByteAlphabet, EveryByteHasItsOwnCharacterAndComesBack) {
  std::set<std::string> characters;
  for (int b = 0; b < 256; ++b) {
    const std::string byte(1, static_cast<char>(b));
    const std::string spelling = to_byte_alphabet(byte);
    characters.insert(spelling);
    EXPECT_EQ(from_byte_alphabet(spelling), byte) << b;
  }
  EXPECT_EQ(characters.size(), 256U);
}

TEST(ByteAlphabet, KnownSpellings) {
  EXPECT_EQ(to_byte_alphabet(" the\n"), "\u0120the\u010A");
  EXPECT_EQ(to_byte_alphabet(std::string("\0\x7F\xA0\xAD\xC3\xA9", 6)),
            "\u0100\u0121\u0142\u0143\u00C3\u00A9");
  EXPECT_EQ(from_byte_alphabet("\u0120a"), " a");
}

TEST(ByteAlphabet, OtherCharactersAreRefused) {
  EXPECT_EQ(from_byte_alphabet("a b"), std::nullopt);
  EXPECT_EQ(from_byte_alphabet("\u0144"), std::nullopt);
  EXPECT_EQ(from_byte_alphabet("\u2581a"), std::nullopt);
  EXPECT_EQ(from_byte_alphabet("\xC4"), std::nullopt);
  EXPECT_EQ(from_byte_alphabet("\xC1\xA1"), std::nullopt);  // an overlong "a"
}

}  // namespace
}  // namespace kvasir
