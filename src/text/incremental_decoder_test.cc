#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "base/utf8.h"
#include "text/test_data.h"

namespace kvasir {
namespace {

using Pieces = std::vector<std::string>;

// What each piece of bytes gives, then finish().
Pieces stream(const Pieces& pieces) {
  IncrementalDecoder decoder(smollm2_tokenizer(), false);
  Pieces texts;
  for (const std::string& piece : pieces) texts.push_back(decoder.push_bytes(piece));
  texts.push_back(decoder.finish());
  return texts;
}

TEST(IncrementalDecoder, AnEmojiOverTwoTokensComesWhole) {
  EXPECT_EQ(stream({"\xF0\x9F", "\x98\x80"}), (Pieces{"", "\U0001F600", ""}));
  EXPECT_EQ(stream({"\xE6\x97", "\xA5"}), (Pieces{"", "\u65E5", ""}));
}

TEST(IncrementalDecoder, TextBeforeAnUnfinishedCharacterGoesOutAtOnce) {
  EXPECT_EQ(stream({"hi", "\xF0", "\x9F", "\x98", "\x80"}), (Pieces{"hi", "", "", "", "\U0001F600", ""}));
  EXPECT_EQ(stream({"hi\xF0\x9F", "\x98\x80!"}), (Pieces{"hi", "\U0001F600!", ""}));
}

TEST(IncrementalDecoder, AFamilyByteByByte) {
  const std::string family = "\U0001F468\u200D\U0001F469\u200D\U0001F467";
  ASSERT_EQ(family.size(), 18U);
  Pieces bytes;
  for (const char c : family) bytes.emplace_back(1, c);
  const Pieces texts = stream(bytes);
  std::string whole;
  int characters = 0;
  for (const std::string& text : texts) {
    EXPECT_TRUE(is_valid_utf8(text));
    whole += text;
    characters += !text.empty();
  }
  EXPECT_EQ(whole, family);
  EXPECT_EQ(characters, 5);
}

TEST(IncrementalDecoder, ACharacterThatIsCutEndsWithOneReplacement) {
  EXPECT_EQ(stream({"ok", "\xF0\x9F"}), (Pieces{"ok", "", "\uFFFD"}));
  EXPECT_EQ(stream({"\xF0\x9F", "x"}), (Pieces{"", "\uFFFDx", ""}));
}

TEST(IncrementalDecoder, RandomIdsGiveTheTextOfTheWholeDecode) {
  const unsigned seed = 12;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const Tokenizer& tokenizer = smollm2_tokenizer();
  std::vector<TokenId> fragments;  // tokens that are no text on their own: random ids alone rarely meet them
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!is_valid_utf8(tokenizer.token_bytes(id))) fragments.push_back(id);
  }
  ASSERT_GT(fragments.size(), 100U);
  for (int round = 0; round < 1000; ++round) {
    std::vector<TokenId> ids(random() % 40);
    for (TokenId& id : ids) {
      switch (random() % 3) {
        case 0:
          id = static_cast<TokenId>(random() % static_cast<unsigned>(tokenizer.vocab_size()));
          break;
        case 1:
          id = fragments[random() % fragments.size()];
          break;
        default:
          id = static_cast<TokenId>(random() % 300);
          break;  // control tokens, bytes, spaces
      }
    }
    for (const bool skip_control : {false, true}) {
      IncrementalDecoder decoder(tokenizer, skip_control);
      std::string text;
      for (const TokenId id : ids) {
        const std::string piece = decoder.push(id);
        ASSERT_TRUE(is_valid_utf8(piece));
        text += piece;
      }
      ASSERT_EQ(text + decoder.finish(), tokenizer.decode(ids, skip_control)) << "round " << round;
    }
  }
}

}  // namespace
}  // namespace kvasir
