#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "base/elementary.h"
#include "base/float_environment.h"
#include "kvasir/error.h"
#include "kvasir/sampling.h"
#include "sampling/row.h"

namespace kvasir {

double log_sum_exp(std::span<const float> logits) {
  return with_defined_floats([&] {
    const double largest = checked_max(logits, "the model's logits");
    return largest + defined_log(sum_exp(logits, largest));
  });
}

namespace {

Logprobs compute_logprobs(std::span<const float> logits, TokenId chosen, std::size_t top_n) {
  if (chosen < 0 || static_cast<std::size_t>(chosen) >= logits.size()) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("token id {} is outside the vocabulary of {}", chosen, logits.size()));
  }
  // logit - (largest + log(sum)) as two differences: the sum could round away digits of the small term.
  const double largest = checked_max(logits, "the model's logits");
  const double log_sum = defined_log(sum_exp(logits, largest));
  const auto logit = [&](TokenId id) { return logits[static_cast<std::size_t>(id)]; };
  const auto logprob = [&](TokenId id) { return (static_cast<double>(logit(id)) - largest) - log_sum; };

  std::vector<TokenId> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  std::vector<TokenId> best(std::min(top_n, logits.size()));
  std::partial_sort_copy(ids.begin(), ids.end(), best.begin(), best.end(), [&](TokenId a, TokenId b) {
    return logit(a) > logit(b) || (logit(a) == logit(b) && a < b);
  });
  Logprobs result{logprob(chosen), {}};
  for (const TokenId id : best) result.top.emplace_back(id, logprob(id));
  return result;
}

}  // namespace

Logprobs logprobs_of(std::span<const float> logits, TokenId chosen, std::size_t top_n) {
  return with_defined_floats([&] { return compute_logprobs(logits, chosen, top_n); });
}

}  // namespace kvasir
