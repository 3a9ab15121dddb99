#include "sampling/penalties.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <vector>

namespace kvasir {
namespace {

using Row = std::vector<double>;
using Ids = std::vector<TokenId>;

const Row kRow{2.0, -1.0, 0.5, 0.0};
const Ids kPrompt{0, 0, 0};
const Ids kOutput{1, 1, 2};

Row penalised(const Row& row, const SamplingParams& params, const Ids& prompt, const Ids& output) {
  Row result = row;
  std::vector<std::int32_t> counts(row.size());
  apply_bias_and_penalties(result, params, prompt, output, counts);
  EXPECT_EQ(counts, std::vector<std::int32_t>(row.size())) << "the scratch must be left at zero";
  return result;
}

void expect_near(const Row& got, const Row& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], 5e-6) << i;
}

TEST(Penalties, RepetitionAppliesOncePerIdOfPromptAndOutput) {
  SamplingParams params;
  params.repetition_penalty = 1.5;
  expect_near(penalised(kRow, params, kPrompt, kOutput), {1.33333, -1.5, 0.33333, 0});
}

TEST(Penalties, PresenceAndFrequencyCountTheOutputOnly) {
  SamplingParams params;
  params.repetition_penalty = 1.5;
  params.frequency_penalty = 0.5;
  params.presence_penalty = 0.25;
  expect_near(penalised(kRow, params, kPrompt, kOutput), {1.33333, -2.75, -0.41667, 0});
  params.repetition_penalty = 1.0;
  expect_near(penalised(kRow, params, kPrompt, kOutput), {2.0, -2.25, -0.25, 0});
  params.frequency_penalty = 0.0;
  expect_near(penalised(kRow, params, kPrompt, kOutput), {2.0, -1.25, 0.25, 0});
}

TEST(Penalties, NeutralOnesLeaveTheBits) {
  const Row row{-0.0, 5e-324, 0.1, -std::numeric_limits<double>::infinity()};
  const Row result = penalised(row, SamplingParams{}, {0, 1, 2, 3}, {0, 1, 2, 3});
  for (std::size_t i = 0; i < row.size(); ++i) {
    EXPECT_EQ(std::bit_cast<std::uint64_t>(result[i]), std::bit_cast<std::uint64_t>(row[i]));
  }
}

TEST(Penalties, WindowTakesTheLastTokensOfPromptAndOutput) {
  const Row row(10, 1.0);
  const Ids history{5, 6, 7, 5, 8};
  SamplingParams params;
  params.repetition_penalty = 2.0;
  params.penalty_window = 2;
  Row expected(10, 1.0);
  expected[5] = expected[8] = 0.5;
  // However prompt and output share the history.
  for (std::ptrdiff_t split = 0; split <= 5; ++split) {
    const Ids prompt(history.begin(), history.begin() + split),
        output(history.begin() + split, history.end());
    EXPECT_EQ(penalised(row, params, prompt, output), expected) << split;
  }
  params.repetition_penalty = 1.0;
  params.frequency_penalty = 0.25;
  params.penalty_window = 4;  // 6 7 5 8, of which the output is 7 5 8
  const Row counted = penalised(row, params, {5, 6}, {7, 5, 8});
  EXPECT_EQ(counted, (Row{1, 1, 1, 1, 1, 0.75, 1, 0.75, 0.75, 1}));
  params.penalty_window = 1;
  EXPECT_EQ(penalised(row, params, {5, 6}, {7, 5, 8}), (Row{1, 1, 1, 1, 1, 1, 1, 1, 0.75, 1}));
  params.penalty_window = std::numeric_limits<std::int64_t>::max();
  EXPECT_EQ(penalised(row, params, {5, 6}, {7, 5, 5}), (Row{1, 1, 1, 1, 1, 0.5, 1, 0.75, 1, 1}));
}

TEST(Penalties, BiasComesBeforeRepetition) {
  SamplingParams params;
  params.repetition_penalty = 2.0;
  params.logit_bias = {{1, 3.0}};
  expect_near(penalised(kRow, params, {1}, {}), {2.0, 1.0, 0.5, 0});
}

}  // namespace
}  // namespace kvasir
