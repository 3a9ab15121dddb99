#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "kvasir/error.h"
#include "kvasir/sampling.h"

namespace kvasir {
namespace {

// Written so that NaN fails `accepted`.
template <class T>
void require(bool accepted, std::string_view name, T value, std::string_view range) {
  if (!accepted) {
    throw Error(ErrorKind::kInvalidArgument, fmt::format("{} is {}, it must be {}", name, value, range));
  }
}

bool within(double value, double low, double high) { return value >= low && value <= high; }

void check_logit_bias(const std::vector<std::pair<TokenId, double>>& logit_bias, std::int32_t vocab_size) {
  std::vector<TokenId> ids;
  for (const auto& [id, bias] : logit_bias) {
    if (id < 0 || id >= vocab_size) {
      throw Error(
          ErrorKind::kInvalidArgument,
          fmt::format("logit_bias has the token id {}, the vocabulary has 0 to {}", id, vocab_size - 1));
    }
    if (!within(bias, -100, 100)) {
      throw Error(ErrorKind::kInvalidArgument,
                  fmt::format("logit_bias of token {} is {}, it must be in [-100, 100]", id, bias));
    }
    ids.push_back(id);
  }
  // Refused, not added up or overwritten: nobody means either.
  std::sort(ids.begin(), ids.end());
  if (const auto twice = std::adjacent_find(ids.begin(), ids.end()); twice != ids.end()) {
    throw Error(ErrorKind::kInvalidArgument, fmt::format("logit_bias has the token id {} twice", *twice));
  }
}

}  // namespace

void check_sampling_params(const SamplingParams& params, std::int32_t vocab_size) {
  require(vocab_size >= 1, "vocab_size", vocab_size, "at least 1");
  require(params.temperature >= 0 && std::isfinite(params.temperature), "temperature", params.temperature,
          "a finite number, 0 or more");
  require(params.top_k >= 0, "top_k", params.top_k, "0 (off) or more");
  require(within(params.top_p, 0, 1), "top_p", params.top_p, "in [0, 1]");
  require(within(params.min_p, 0, 1), "min_p", params.min_p, "in [0, 1]");
  require(params.repetition_penalty > 0 && std::isfinite(params.repetition_penalty), "repetition_penalty",
          params.repetition_penalty, "a finite number above 0");
  require(within(params.presence_penalty, -2, 2), "presence_penalty", params.presence_penalty, "in [-2, 2]");
  require(within(params.frequency_penalty, -2, 2), "frequency_penalty", params.frequency_penalty,
          "in [-2, 2]");
  require(params.penalty_window >= 0, "penalty_window", params.penalty_window,
          "0 (everything) or more tokens");
  check_logit_bias(params.logit_bias, vocab_size);
}

}  // namespace kvasir
