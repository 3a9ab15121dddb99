#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "kvasir/error.h"
#include "kvasir/sampling.h"

namespace kvasir {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();
const double kNan = std::nan("");

// The message of the refusal must begin with the name of the field.
void expect_refused(const std::string& field, const std::function<void(SamplingParams&)>& set) {
  SamplingParams params;
  set(params);
  try {
    check_sampling_params(params, 64);
    FAIL() << "a bad " << field << " was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kInvalidArgument);
    EXPECT_EQ(std::string(error.what()).rfind(field + " ", 0), 0U) << error.what();
  }
}

TEST(CheckSamplingParams, NamesTheFieldThatIsOutOfRange) {
  for (const double bad : {-1.0, -1e-300, kInf, kNan}) {
    expect_refused("temperature", [&](auto& p) { p.temperature = bad; });
  }
  expect_refused("top_k", [](auto& p) { p.top_k = -2; });
  for (const double bad : {1.5, -0.1, 1.0 + 0x1p-52, kNan, kInf}) {
    expect_refused("top_p", [&](auto& p) { p.top_p = bad; });
    expect_refused("min_p", [&](auto& p) { p.min_p = bad; });
  }
  for (const double bad : {0.0, -1.0, kInf, kNan}) {
    expect_refused("repetition_penalty", [&](auto& p) { p.repetition_penalty = bad; });
  }
  for (const double bad : {2.1, -2.1, kNan}) {
    expect_refused("presence_penalty", [&](auto& p) { p.presence_penalty = bad; });
    expect_refused("frequency_penalty", [&](auto& p) { p.frequency_penalty = bad; });
  }
  expect_refused("penalty_window", [](auto& p) { p.penalty_window = -1; });
  for (const TokenId bad : {64, -1, std::numeric_limits<TokenId>::max()}) {
    expect_refused("logit_bias", [&](auto& p) { p.logit_bias = {{bad, 1.0}}; });
  }
  for (const double bad : {101.0, -100.5, kNan, -kInf}) {
    expect_refused("logit_bias", [&](auto& p) { p.logit_bias = {{5, bad}}; });
  }
  expect_refused("logit_bias", [](auto& p) { p.logit_bias = {{5, 1.0}, {3, 1.0}, {5, 1.0}}; });
}

TEST(CheckSamplingParams, AcceptsTheLimitsOfEveryRange) {
  SamplingParams params;
  EXPECT_NO_THROW(check_sampling_params(params, 64));
  EXPECT_THROW(check_sampling_params(params, 0), Error);
  params.temperature = 0;
  params.top_k = std::numeric_limits<std::int64_t>::max();
  params.top_p = 0;
  params.min_p = 1;
  params.repetition_penalty = 5e-324;
  params.presence_penalty = -2;
  params.frequency_penalty = 2;
  params.penalty_window = std::numeric_limits<std::int64_t>::max();
  params.logit_bias = {{0, 100.0}, {63, -100.0}};
  params.seed = std::numeric_limits<std::uint64_t>::max();
  params.choice = std::numeric_limits<std::uint32_t>::max();
  EXPECT_NO_THROW(check_sampling_params(params, 64));
}

TEST(CheckSamplingParams, IsDoneByTheSampler) {
  SamplingParams params;
  params.top_p = 1.5;
  EXPECT_THROW(Sampler(params, 64), Error);
}

}  // namespace
}  // namespace kvasir
