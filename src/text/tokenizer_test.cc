#include "kvasir/tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <thread>
#include <unordered_map>

#include "kvasir/error.h"
#include "text/byte_alphabet.h"
#include "text/test_data.h"

namespace kvasir {
namespace {

using Ids = std::vector<TokenId>;

// A tokenizer of these tokens, all normal; merges as "left right".
TokenizerData make_data(std::vector<std::string> tokens, std::vector<std::string> merges,
                        const std::string& pre = "gpt-2") {
  TokenizerData data;
  data.pre = pre;
  data.types.assign(tokens.size(), TokenType::kNormal);
  data.tokens = std::move(tokens);
  data.merges = std::move(merges);
  return data;
}

TokenizerData with_special(TokenizerData data, const std::string& spelling, TokenType type) {
  data.tokens.push_back(spelling);
  data.types.push_back(type);
  return data;
}

// The tokens of a text, with a dot between.
std::string tokens_of(const Tokenizer& tokenizer, std::string_view text,
                      ControlTokens control = ControlTokens::kAsText) {
  std::string joined;
  for (const TokenId id : tokenizer.encode(text, control)) {
    if (!joined.empty()) joined += ".";
    joined += tokenizer.data().tokens[static_cast<std::size_t>(id)];
  }
  return joined;
}

std::string message_of(const TokenizerData& data) {
  try {
    Tokenizer tokenizer(data);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kFormat);
    return error.what();
  }
  return "no error";
}

// ---- Against the reference.

TEST(TokenizerGolden, EncodesAndDecodesAsTheReferenceDoes) {
  const Tokenizer& tokenizer = smollm2_tokenizer();
  const std::size_t lines = for_each_json_line("tokenizer/encode.jsonl", [&](simdjson::dom::element line) {
    const std::string text = json_string(line["text"]);
    simdjson::dom::element value;
    const std::string bytes = line["bytes_hex"].get(value) ? text : from_hex(json_string(value));
    const Ids ids = json_ids(line["ids"]);
    const Ids plain = line["ids_plain"].get(value) ? ids : json_ids(value);
    const std::string decoded = line["decoded"].get(value) ? text : json_string(value);
    const std::string skipped = line["decoded_skip_special"].get(value) ? decoded : json_string(value);
    EXPECT_EQ(tokenizer.encode(bytes, ControlTokens::kParse), ids) << text;
    EXPECT_EQ(tokenizer.encode(bytes, ControlTokens::kAsText), plain) << text;
    EXPECT_EQ(tokenizer.decode(ids, false), decoded);
    EXPECT_EQ(tokenizer.decode(ids, true), skipped);
  });
  EXPECT_EQ(lines, 654U);
}

TEST(TokenizerGolden, DecodesAnyIdsAndStreamsThem) {
  const Tokenizer& tokenizer = smollm2_tokenizer();
  simdjson::dom::parser parser;
  const simdjson::dom::element golden = parser.load(test_data_path("tokenizer/decode.json"));
  EXPECT_EQ(tokenizer.vocab_size(), golden["vocab_size"].get_int64().value());
  EXPECT_EQ(static_cast<std::int64_t>(tokenizer.data().merges.size()), golden["merges"].get_int64().value());
  Ids special;
  for (TokenId id = 0; id < tokenizer.vocab_size(); ++id) {
    if (tokenizer.token_type(id) == TokenType::kControl) special.push_back(id);
  }
  EXPECT_EQ(special, json_ids(golden["special_ids"]));
  std::size_t sequences = 0, streams = 0, tokens = 0;
  for (const simdjson::dom::element s : golden["sequences"].get_array()) {
    ++sequences;
    const Ids ids = json_ids(s["ids"]);
    EXPECT_EQ(tokenizer.decode_bytes(ids, false), from_hex(json_string(s["bytes_hex"])));
    EXPECT_EQ(tokenizer.decode(ids, false), json_string(s["text"]));
    EXPECT_EQ(tokenizer.decode(ids, true), json_string(s["text_skip_special"]));
  }
  for (const simdjson::dom::element s : golden["stream"].get_array()) {
    ++streams;
    const Ids ids = json_ids(s["ids"]);
    EXPECT_EQ(tokenizer.encode(json_string(s["text"]), ControlTokens::kParse), ids);
    std::size_t i = 0;
    std::string text;
    IncrementalDecoder decoder(tokenizer, false);
    for (const simdjson::dom::element piece : s["pieces_hex"].get_array()) {
      EXPECT_EQ(tokenizer.token_bytes(ids[i]), from_hex(json_string(piece)));
      text += decoder.push(ids[i++]);
    }
    EXPECT_EQ(i, ids.size());
    EXPECT_EQ(text + decoder.finish(), json_string(s["text"]));
  }
  for (const simdjson::dom::element t : golden["tokens"].get_array()) {
    ++tokens;
    const auto id = static_cast<TokenId>(t.at(0).get_int64().value());
    EXPECT_EQ(tokenizer.token_bytes(id), from_hex(json_string(t.at(1))));
  }
  EXPECT_EQ(sequences, 60U);
  EXPECT_EQ(streams, 10U);
  EXPECT_EQ(tokens, 417U);
  Ids tokenless;
  for (int byte = 0; byte < 256; ++byte) {
    if (!tokenizer.find_token(to_byte_alphabet(std::string(1, static_cast<char>(byte)))))
      tokenless.push_back(byte);
  }
  EXPECT_EQ(tokenless, json_ids(golden["bytes_without_token"]));
}

TEST(TokenizerGolden, ReadsTheSettingsOfTheFile) {
  const Tokenizer& tokenizer = smollm2_tokenizer();
  EXPECT_EQ(tokenizer.data().pre, "smollm");
  EXPECT_EQ(tokenizer.data().bos, 1);
  EXPECT_EQ(tokenizer.data().eos, 2);
  EXPECT_EQ(tokenizer.data().eot, std::nullopt);
  EXPECT_FALSE(tokenizer.data().add_bos);
  EXPECT_TRUE(tokenizer.is_end_of_generation(2));
  EXPECT_FALSE(tokenizer.is_end_of_generation(1));
  EXPECT_EQ(tokenizer.find_token("<|im_end|>"), 2);
  EXPECT_EQ(tokenizer.find_token("no such token"), std::nullopt);
}

// ---- Merging.

TEST(Tokenizer, MergesByRankThenFromTheLeft) {
  EXPECT_EQ(tokens_of(Tokenizer(make_data({"a", "b", "c", "bc", "ab"}, {"b c", "a b"})), "abc"), "a.bc");
  EXPECT_EQ(tokens_of(Tokenizer(make_data({"a", "aa"}, {"a a"})), "aaaaa"), "aa.aa.a");
  EXPECT_EQ(tokens_of(Tokenizer(make_data({"a", "aa", "aaaa"}, {"a a", "aa aa"})), "aaaaaaa"), "aaaa.aa.a");
  EXPECT_EQ(tokens_of(Tokenizer(make_data({"a", "aa", "aaa"}, {"a a", "aa a"})), "aaa"), "aaa");
  EXPECT_EQ(
      tokens_of(Tokenizer(make_data({"x", "y", "z", "yz", "xy", "xyx"}, {"y z", "x y", "xy x"})), "xyxyz"),
      "xyx.yz");
}

TEST(Tokenizer, LooksUpWholeWordsFirstOnlyWhereTheModelDoes) {
  const std::vector<std::string> tokens = {"a", "b", "c", "ab", "abc"}, merges = {"a b"};
  EXPECT_EQ(tokens_of(Tokenizer(make_data(tokens, merges, "llama-bpe")), "abc"), "abc");
  EXPECT_EQ(tokens_of(Tokenizer(make_data(tokens, merges, "gpt-2")), "abc"), "ab.c");
  // Control tokens are no words.
  const Tokenizer control(with_special(make_data({"a", "b"}, {}, "llama-bpe"), "ab", TokenType::kControl));
  EXPECT_EQ(tokens_of(control, "ab"), "a.b");
  EXPECT_EQ(tokens_of(control, "ab", ControlTokens::kParse), "ab");
}

TEST(Tokenizer, DropsBytesWithoutTokenBeforeMerging) {
  const Tokenizer tokenizer(make_data({"!", "!!"}, {"! !"}));
  EXPECT_EQ(tokens_of(tokenizer, "!\x1D!"), "!!");
  EXPECT_EQ(tokens_of(tokenizer, "?"), "");
}

// ---- Special tokens.

TEST(Tokenizer, ControlTokensOnlyWhenAskedForUserDefinedOnesAlways) {
  TokenizerData data = make_data({"<", "a", "u", "x", ">"}, {});
  data = with_special(data, "<a>", TokenType::kControl);
  data = with_special(data, "<u>", TokenType::kUserDefined);
  data = with_special(data, "<x>", TokenType::kUnused);
  data = with_special(data, "<xx>", TokenType::kUnknown);
  const Tokenizer tokenizer(data);
  EXPECT_EQ(tokens_of(tokenizer, "<a><u>x"), "<.a.>.<u>.x");
  EXPECT_EQ(tokens_of(tokenizer, "<a><u>x", ControlTokens::kParse), "<a>.<u>.x");
  EXPECT_EQ(tokens_of(tokenizer, "<x><xx>", ControlTokens::kParse), "<.x.>.<.x.x.>");
}

TEST(Tokenizer, MergesNeverMakeControlTokens) {
  const TokenizerData data = make_data({"a", "b", "c", "ab"}, {"a b", "ab c"});
  const Tokenizer tokenizer(with_special(data, "abc", TokenType::kControl));
  EXPECT_EQ(tokens_of(tokenizer, "abc"), "ab.c");
  EXPECT_EQ(tokens_of(tokenizer, "abc", ControlTokens::kParse), "abc");
}

TEST(Tokenizer, SegmentsAreOneTextWithTrustedParts) {
  TokenizerData data = make_data({"a", "b", "ab", "<", ">"}, {"a b"});
  data = with_special(data, "<a>", TokenType::kControl);
  data = with_special(data, "b<", TokenType::kUserDefined);
  data = with_special(data, "aa", TokenType::kUserDefined);
  const Tokenizer tokenizer(data);
  constexpr auto kTrusted = ControlTokens::kParse, kText = ControlTokens::kAsText;
  const auto encode = [&](const std::vector<TextSegment>& segments) { return tokenizer.encode(segments); };
  const auto parse = [&](std::string_view text) { return tokenizer.encode(text, kTrusted); };
  const auto plain = [&](std::string_view text) { return tokenizer.encode(text, kText); };
  // Merges and user-defined tokens run across borders.
  EXPECT_EQ(encode({{"a", kTrusted}, {"b", kText}}), plain("ab"));
  EXPECT_EQ(encode({{"a", kTrusted}, {"a", kText}}), plain("aa"));
  EXPECT_EQ(encode({{"a", kText}, {"aa", kTrusted}}), plain("aaa"));
  // Control tokens: all of it in trusted text, which may come in several segments.
  EXPECT_EQ(encode({{"<", kTrusted}, {"a", kTrusted}, {">", kTrusted}}), parse("<a>"));
  EXPECT_EQ(encode({{"<", kTrusted}, {"a", kText}, {">", kTrusted}}), plain("<a>"));
  EXPECT_EQ(encode({{"<a>", kText}, {"<a>", kTrusted}}), (Ids{3, 0, 4, 5}));
  // A user's text cannot swallow the beginning of a control token, where the same text from one hand would.
  EXPECT_EQ(encode({{"b", kText}, {"<a>", kTrusted}}), (Ids{1, 5}));
  EXPECT_EQ(parse("b<a>"), (Ids{6, 0, 4}));
  EXPECT_EQ(encode({}), Ids{});
}

TEST(Tokenizer, ServesSeveralThreads) {
  const std::string text = "The quick brown fox, 42 times. <|im_end|> " + std::string(100, 'a');
  const Ids expected = smollm2_tokenizer().encode(text, ControlTokens::kParse);
  std::vector<int> equal(4, 0);
  std::vector<std::thread> threads;
  for (int& count : equal) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i)
        count += smollm2_tokenizer().encode(text, ControlTokens::kParse) == expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(equal, std::vector<int>(4, 50));
}

// ---- Decoding.

TEST(Tokenizer, DecodesIdsAndRefusesOthers) {
  const Tokenizer tokenizer(
      with_special(make_data({"\u0120", "\u00C3", "\u00A9"}, {}), "\u2581end", TokenType::kControl));
  EXPECT_EQ(tokenizer.decode(Ids{0, 1, 2, 3, 1}, false), " \u00E9\u2581end\uFFFD");
  EXPECT_EQ(tokenizer.decode(Ids{0, 1, 2, 3, 1}, true), " \u00E9\uFFFD");
  EXPECT_EQ(tokenizer.decode_bytes(Ids{1, 3, 2}, true), "\u00E9");
  for (const TokenId id : {-1, 4}) {
    EXPECT_THROW(tokenizer.token_bytes(id), Error);
    EXPECT_THROW(tokenizer.token_type(id), Error);
    EXPECT_THROW(tokenizer.decode(Ids{id}, true), Error);
  }
}

TEST(Tokenizer, NormalTokensOutsideTheByteAlphabetStandForThemselves) {
  const Tokenizer tokenizer(make_data({"a b", "a", "b"}, {}));
  EXPECT_EQ(tokenizer.decode(Ids{0}, false), "a b");
  EXPECT_EQ(tokens_of(tokenizer, "a"), "a");
}

// ---- Data that contradicts itself.

TEST(Tokenizer, ContradictionsAreNamed) {
  const TokenizerData good = make_data({"a", "b", "ab"}, {"a b"});
  EXPECT_EQ(message_of(good), "no error");
  const auto expect = [&](const auto& change, const std::string& part) {
    TokenizerData data = good;
    data.source = "model.gguf";
    change(data);
    const std::string message = message_of(data);
    EXPECT_NE(message.find(part), std::string::npos) << message;
    EXPECT_EQ(message.find("model.gguf: tokenizer.ggml."), 0U) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  };
  expect([](auto& d) { d.tokens = {}, d.types = {}, d.merges = {}; }, "tokens is empty");
  expect([](auto& d) { d.types.pop_back(); }, "token_type has 2 entries");
  expect([](auto& d) { d.pre = "other"; },
         "pre 'other' is not supported; supported: smollm, gpt-2, llama-bpe, qwen2");
  expect([](auto& d) { d.bos = 3; }, "bos_token_id is 3");
  expect([](auto& d) { d.eos = -1; }, "eos_token_id is -1");
  expect([](auto& d) { d.eot = 3; }, "eot_token_id is 3");
  expect([](auto& d) { d.add_bos = true; }, "bos_token_id is missing");
  for (const char* merge : {"", "ab", " ab", "ab ", "a b b", "a  b"}) {
    expect([&](auto& d) { d.merges.push_back(merge); },
           "merges[1] \"" + std::string(merge) + "\" is not two tokens");
  }
  expect([](auto& d) { d.merges.push_back("b a"); }, "merges[1] \"b a\" needs a token \"ba\"");
  expect([](auto& d) { d.merges.push_back("a c"); }, "needs a token \"c\"");
}

// ---- Speed on single words.

double encode_seconds(const Tokenizer& tokenizer, const std::string& text) {
  const double start = thread_cpu_seconds();
  const Ids ids = tokenizer.encode(text, ControlTokens::kParse);
  const double seconds = thread_cpu_seconds() - start;
  EXPECT_EQ(tokenizer.decode_bytes(ids, false), text);
  return seconds;
}

std::string repeat(std::string_view unit, std::size_t times) {
  std::string text;
  for (std::size_t i = 0; i < times; ++i) text += unit;
  return text;
}

TEST(TokenizerSpeed, LongWordsTakeUnderASecond) {
  const Tokenizer& tokenizer = smollm2_tokenizer();
  EXPECT_LT(encode_seconds(tokenizer, repeat("a", 100'000)), 1.0);
  EXPECT_LT(encode_seconds(tokenizer, repeat("_", 50'000)), 1.0);
  EXPECT_LT(encode_seconds(tokenizer, repeat("\u6F22", 15'000)), 1.0);
  EXPECT_LT(encode_seconds(tokenizer, repeat(" ", 1'000'000)), 1.0);
  EXPECT_LT(encode_seconds(tokenizer, repeat("<|im_start|", 100'000)), 1.0);
}

// 2.6 times for twice the length, on average of four doublings: one of them alone may be where the text no
// longer fits a cache. A quadratic method takes 4 times.
TEST(TokenizerSpeed, TimeGrowsAlmostLinearly) {
  constexpr int kRuns = 5;
  constexpr std::size_t kShort = 10'000, kTimes = 16;
  for (const char* unit : {"a", "_", "\u6F22"}) {
    const std::string short_text = repeat(unit, kShort), long_text = repeat(unit, kTimes * kShort);
    double short_seconds = 1e9, long_seconds = 1e9;  // the best of some
    for (int i = 0; i < kRuns; ++i) {
      short_seconds = std::min(short_seconds, encode_seconds(smollm2_tokenizer(), short_text));
      long_seconds = std::min(long_seconds, encode_seconds(smollm2_tokenizer(), long_text));
    }
    EXPECT_LT(std::pow(long_seconds / short_seconds, 0.25), 2.6) << unit;
  }
}

// The real merges by the definition, in quadratic time.
Ids merge_plainly(const Tokenizer& tokenizer, std::string_view word) {
  static const auto* ranks = [] {
    auto* map = new std::unordered_map<std::string, std::size_t>;
    const auto& merges = smollm2_tokenizer().data().merges;
    for (std::size_t i = 0; i < merges.size(); ++i) map->emplace(merges[i], i);
    return map;
  }();
  std::vector<std::string> parts;
  for (const char c : word) parts.push_back(to_byte_alphabet(std::string(1, c)));
  while (true) {
    std::size_t best = ranks->size(), place = 0;
    for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto found = ranks->find(parts[i] + " " + parts[i + 1]);
      if (found != ranks->end() && found->second < best) best = found->second, place = i;
    }
    if (best == ranks->size()) break;
    parts[place] += parts[place + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(place) + 1);
  }
  Ids ids;
  for (const std::string& part : parts) ids.push_back(*tokenizer.find_token(part));
  return ids;
}

TEST(Tokenizer, LongWordsGetTheIdsOfTheQuadraticMethod) {
  const unsigned seed = 3;
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  const Tokenizer& tokenizer = smollm2_tokenizer();
  std::vector<std::string> words = {repeat("a", 2000), repeat("_", 2000), repeat("\u6F22", 666),
                                    repeat("ab", 1000)};
  for (const std::size_t n : {10, 23, 24, 25, 26, 50, 400, 2000}) {
    for (int i = 0; i < 3; ++i) {
      std::string word;
      while (word.size() < n) word += "etaoinshrdlu"[random() % 12];
      words.push_back(word);
    }
  }
  for (const std::string& word : words) {
    EXPECT_EQ(tokenizer.encode(word, ControlTokens::kAsText), merge_plainly(tokenizer, word));
  }
}

}  // namespace
}  // namespace kvasir
