// The stages against reference results of an independent implementation (tests/data/lab,
// tests/data/sampling).
#include <gtest/gtest.h>
#include <simdjson.h>

#include <bit>
#include <fstream>
#include <limits>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "kvasir/sampling.h"

namespace kvasir {
namespace {

using simdjson::dom::array;
using simdjson::dom::element;
using simdjson::dom::object;

constexpr double kNinf = -std::numeric_limits<double>::infinity();
const std::string kData = KVASIR_TEST_DATA;

double number(const element& value) {
  return value.is_string() ? kNinf : double(value);  // the only string among the numbers is "-inf"
}

std::vector<double> numbers(const element& values) {
  std::vector<double> result;
  for (const element value : array(values)) result.push_back(number(value));
  return result;
}

std::vector<TokenId> token_ids(const element& values) {
  std::vector<TokenId> result;
  for (const element value : array(values)) result.push_back(static_cast<TokenId>(std::int64_t(value)));
  return result;
}

// Raw little-endian numbers.
template <class T>
std::vector<T> read_array(const std::string& path) {
  static_assert(std::endian::native == std::endian::little);
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  if (!file) throw std::runtime_error("cannot open " + path);
  std::vector<T> values(static_cast<std::size_t>(file.tellg()) / sizeof(T));
  file.seekg(0).read(reinterpret_cast<char*>(values.data()),
                     static_cast<std::streamsize>(values.size() * sizeof(T)));
  return values;
}

SamplingParams params_of(const object& fields) {
  SamplingParams params;
  const std::map<std::string_view, double*> doubles{{"temperature", &params.temperature},
                                                    {"top_p", &params.top_p},
                                                    {"min_p", &params.min_p},
                                                    {"repetition_penalty", &params.repetition_penalty},
                                                    {"presence_penalty", &params.presence_penalty},
                                                    {"frequency_penalty", &params.frequency_penalty}};
  for (const auto& [name, value] : fields) {
    if (const auto field = doubles.find(name); field != doubles.end()) {
      *field->second = number(value);
    } else if (name == "top_k") {
      params.top_k = std::int64_t(value);
    } else if (name == "logit_bias") {
      for (const auto& [id, bias] : object(value)) {
        params.logit_bias.emplace_back(std::stoi(std::string(id)), number(bias));
      }
    } else if (name != "row" && name != "probs") {
      ADD_FAILURE() << "unknown parameter " << name;
    }
  }
  return params;
}

TEST(Golden, EveryFilterKeepsTheReferenceSetAndTheValues) {
  simdjson::dom::parser parser;
  const element document = parser.load(kData + "/lab/filters.json");
  int cases = 0;
  for (const element filter : array(document["filters"])) {
    const std::string_view name = filter["f"];
    const std::string_view row_name = filter["row"];
    const std::vector<double> row = numbers(document["rows"][row_name]);
    std::vector<double> expected(row.size(), kNinf);
    for (const TokenId id : token_ids(filter["kept"])) {
      expected[static_cast<std::size_t>(id)] = row[static_cast<std::size_t>(id)];
    }
    std::vector<double> filtered = row;
    const double value = number(filter["value"]);
    if (name == "top_k") {
      top_k_filter(filtered, static_cast<std::int64_t>(value));
    } else if (name == "top_p") {
      top_p_filter(filtered, value);
    } else {
      ASSERT_EQ(name, "min_p");
      min_p_filter(filtered, value);
    }
    EXPECT_EQ(filtered, expected) << name << " " << value << " on " << row_name;
    ++cases;
  }
  EXPECT_EQ(cases, 260);
}

TEST(Golden, EveryCompositionGivesTheReferenceDistribution) {
  simdjson::dom::parser parser;
  const element document = parser.load(kData + "/lab/filters.json");
  int cases = 0;
  for (const element composition : array(document["compositions"])) {
    const std::string_view row_name = composition["row"];
    const std::vector<double> row = numbers(document["rows"][row_name]);
    const std::vector<float> logits(row.begin(), row.end());
    const std::vector<double> expected = numbers(composition["probs"]);
    Sampler sampler(params_of(composition), static_cast<std::int32_t>(logits.size()));
    const std::vector<double> got = sampler.probabilities(logits, {}, {});
    ASSERT_EQ(got.size(), expected.size());
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i] == 0.0, expected[i] == 0.0) << "composition " << cases << " token " << i;
      EXPECT_NEAR(got[i], expected[i], 1e-12) << "composition " << cases << " token " << i;
    }
    ++cases;
  }
  EXPECT_EQ(cases, 12);
}

TEST(Golden, EveryCaseOfTheWholeStackGivesTheReferenceDistribution) {
  simdjson::dom::parser parser;
  const element document = parser.load(kData + "/sampling/sampling.json");
  const std::size_t vocab = std::uint64_t(document["vocab"]);
  const std::vector<float> logits = read_array<float>(kData + "/sampling/logits_f32.bin");
  const std::vector<double> probabilities = read_array<double>(kData + "/sampling/probs_f64.bin");
  std::size_t cases = 0;
  for (const element item : array(document["cases"])) {
    const std::size_t row = std::uint64_t(item["row"]);
    const element history = array(document["history"]).at(row);
    const std::vector<TokenId> prompt = token_ids(history["prompt"]), output = token_ids(history["output"]);
    const std::span<const float> row_logits = std::span(logits).subspan(row * vocab, vocab);
    const SamplingParams params = params_of(item["params"]);
    Sampler sampler(params, static_cast<std::int32_t>(vocab));
    const std::vector<double> got = sampler.probabilities(row_logits, prompt, output);

    std::uint64_t kept = 0;
    std::size_t argmax = 0;
    for (std::size_t i = 0; i < vocab; ++i) {
      EXPECT_NEAR(got[i], probabilities.at(cases * vocab + i), 1e-12) << "case " << cases << " token " << i;
      kept += got[i] > 0 ? 1 : 0;
      argmax = got[i] > got[argmax] ? i : argmax;
    }
    EXPECT_EQ(kept, std::uint64_t(item["kept"])) << "case " << cases;
    EXPECT_EQ(argmax, std::uint64_t(item["argmax"])) << "case " << cases;

    SamplerTrace trace;
    const TokenId token = sampler.sample(row_logits, prompt, output, 7, &trace);
    EXPECT_GT(got[static_cast<std::size_t>(token)], 0) << "case " << cases;
    if (params.temperature == 0) {
      EXPECT_EQ(static_cast<std::size_t>(token), argmax) << "case " << cases;
    } else {
      EXPECT_EQ(trace.kept_min_p, kept) << "case " << cases;
    }
    ++cases;
  }
  EXPECT_EQ(cases, 120U);
}

}  // namespace
}  // namespace kvasir
