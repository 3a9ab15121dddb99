#include "base/json_writer.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <random>

namespace kvasir {
namespace {

template <class T>
std::string written(const T& value) {
  JsonWriter json;
  json.value(value);
  return json.text();
}

TEST(JsonWriter, PutsCommasBetweenItemsAndNowhereElse) {
  JsonWriter json;
  json.begin_object();
  json.key("empty").begin_array().end_array();
  json.key("list").begin_array().value(1).begin_object().end_object().null().value("x").end_array();
  json.field("yes", true).field("no", false);
  json.key("deep").begin_object().field("a", 1.5).field("b", 2.5F).end_object();
  json.end_object();
  EXPECT_EQ(json.text(),
            R"({"empty":[],"list":[1,{},null,"x"],"yes":true,"no":false,"deep":{"a":1.5,"b":2.5}})");
}

TEST(JsonWriter, EscapesWhatJsonForbidsInStrings) {
  EXPECT_EQ(written("a\"b\\c\n\r\t/\x7f"), "\"a\\\"b\\\\c\\n\\r\\t/\x7f\"");
  EXPECT_EQ(written(std::string("\0\x01\x1f", 3)), "\"\\u0000\\u0001\\u001f\"");
  JsonWriter json;
  json.begin_object().field("k\n\"", 1).end_object();
  EXPECT_EQ(json.text(), "{\"k\\n\\\"\":1}");
}

TEST(JsonWriter, KeepsUtf8AndReplacesWhatIsNotUtf8) {
  EXPECT_EQ(written("h\u00e9 \u20ac \U0001F600"), "\"h\u00e9 \u20ac \U0001F600\"");
  EXPECT_EQ(written("\xc3\x28 \xe2\x82"), "\"\ufffd( \ufffd\"");
}

TEST(JsonWriter, WritesIntegersExactly) {
  EXPECT_EQ(written(std::numeric_limits<std::int64_t>::min()), "-9223372036854775808");
  EXPECT_EQ(written(std::numeric_limits<std::uint64_t>::max()), "18446744073709551615");
  EXPECT_EQ(written(std::uint8_t{65}), "65");
}

TEST(JsonWriter, WritesTheShortestFloats) {
  EXPECT_EQ(written(0.7), "0.7");
  EXPECT_EQ(written(0.7F), "0.7");
  EXPECT_EQ(written(-0.0), "-0");
  EXPECT_EQ(written(1e300), "1e+300");
  EXPECT_EQ(written(5e-324), "5e-324");
  EXPECT_EQ(written(1.0 / 3), "0.3333333333333333");
  EXPECT_EQ(written(std::numeric_limits<double>::lowest()), "-1.7976931348623157e+308");
}

TEST(JsonWriter, WritesNullForWhatJsonHasNoNumber) {
  EXPECT_EQ(written(std::nan("")), "null");
  EXPECT_EQ(written(std::numeric_limits<double>::infinity()), "null");
  EXPECT_EQ(written(-std::numeric_limits<float>::infinity()), "null");
}

TEST(JsonWriter, FloatsReadBackToTheSameBits) {
  constexpr std::uint64_t kSeed = 20240601;
  RecordProperty("seed", std::to_string(kSeed));
  std::mt19937_64 random(kSeed);
  for (int i = 0; i < 100'000; ++i) {
    const auto wide = std::bit_cast<double>(random());
    if (std::isfinite(wide)) {
      const std::string text = written(wide);
      ASSERT_EQ(std::bit_cast<std::uint64_t>(std::strtod(text.c_str(), nullptr)),
                std::bit_cast<std::uint64_t>(wide))
          << text;
    }
    // Readers of JSON know doubles only: a float must survive the way through one.
    const auto narrow = std::bit_cast<float>(static_cast<std::uint32_t>(random()));
    if (std::isfinite(narrow)) {
      const std::string text = written(narrow);
      const auto back = static_cast<float>(std::strtod(text.c_str(), nullptr));
      ASSERT_EQ(std::bit_cast<std::uint32_t>(back), std::bit_cast<std::uint32_t>(narrow)) << text;
    }
  }
}

}  // namespace
}  // namespace kvasir
