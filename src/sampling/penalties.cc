#include "sampling/penalties.h"

#include <algorithm>

namespace kvasir {
namespace {

std::size_t index(TokenId id) { return static_cast<std::size_t>(id); }

std::span<const TokenId> last_of(std::span<const TokenId> ids, std::size_t n) {
  return ids.last(std::min(n, ids.size()));
}

void penalise_repetition(std::span<double> row, double penalty, std::span<const TokenId> ids,
                         std::span<std::int32_t> counts) {
  for (const TokenId id : ids) {
    if (counts[index(id)]++ > 0) continue;  // once per id, however often it occurs
    double& logit = row[index(id)];
    logit = logit > 0 ? logit / penalty : logit * penalty;
  }
}

void penalise_output(std::span<double> row, const SamplingParams& params, std::span<const TokenId> output,
                     std::span<std::int32_t> counts) {
  for (const TokenId id : output) ++counts[index(id)];
  for (const TokenId id : output) {
    std::int32_t& count = counts[index(id)];
    if (count > 0) row[index(id)] -= count * params.frequency_penalty + params.presence_penalty;
    count = 0;
  }
}

}  // namespace

bool changes_logits(const SamplingParams& params) {
  return params.repetition_penalty != 1.0 || params.presence_penalty != 0.0 ||
         params.frequency_penalty != 0.0 || !params.logit_bias.empty();
}

void apply_bias_and_penalties(std::span<double> row, const SamplingParams& params,
                              std::span<const TokenId> prompt, std::span<const TokenId> output,
                              std::span<std::int32_t> counts) {
  if (params.penalty_window > 0) {
    const auto window = static_cast<std::size_t>(params.penalty_window);
    output = last_of(output, window);
    prompt = last_of(prompt, window - output.size());
  }
  const bool repetition = params.repetition_penalty != 1.0;
  const bool of_output = params.presence_penalty != 0.0 || params.frequency_penalty != 0.0;

  for (const auto& [id, bias] : params.logit_bias) row[index(id)] += bias;
  if (repetition) {
    penalise_repetition(row, params.repetition_penalty, prompt, counts);
    penalise_repetition(row, params.repetition_penalty, output, counts);
    for (const TokenId id : prompt) counts[index(id)] = 0;
    for (const TokenId id : output) counts[index(id)] = 0;
  }
  if (of_output) penalise_output(row, params, output, counts);
}

}  // namespace kvasir
