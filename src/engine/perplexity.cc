#include "kvasir/perplexity.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kvasir/error.h"
#include "kvasir/sampling.h"

namespace kvasir {
namespace {

struct Sums {
  std::int64_t count = 0;
  double nll = 0.0;
  double nll_squared = 0.0;
};

void add_window(const Model& model, Executor& executor, std::span<const TokenId> ids,
                const PerplexityOptions& options, Sums& sums) {
  const auto t = static_cast<std::int64_t>(ids.size());
  const auto vocab = static_cast<std::size_t>(model.config().vocab_size);
  // One append() a chunk, so that only its logits are held. Without a cache, everything comes from one run.
  const std::int64_t chunk =
      options.run.use_cache && options.run.prefill_chunk > 0 ? options.run.prefill_chunk : t;
  SequenceRunner runner(model, executor, 1, t, options.kv_type, options.run);
  for (std::int64_t begin = 0; begin < t; begin += chunk) {
    const std::int64_t n = std::min(chunk, t - begin);
    const auto logits =
        runner.append(ids.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(n)), n);
    for (std::int64_t i = 0; i < n && begin + i + 1 < t; ++i) {
      const TokenId next = ids[static_cast<std::size_t>(begin + i + 1)];
      const double nll =
          -logprobs_of(logits.subspan(static_cast<std::size_t>(i) * vocab, vocab), next, 0).chosen;
      if (!std::isfinite(nll)) {
        throw Error(ErrorKind::kRuntime, fmt::format("the logits after token {} are not finite", begin + i));
      }
      ++sums.count;
      sums.nll += nll;
      sums.nll_squared += nll * nll;
    }
  }
}

}  // namespace

PerplexityResult perplexity(const Model& model, Executor& executor, std::span<const TokenId> ids,
                            const PerplexityOptions& options) {
  const std::int64_t context = model.config().max_seq;
  const std::int64_t window = options.window == 0 ? context : options.window;
  if (window < 2 || window > context) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("window is {}, must be 2 to the model's {}", window, context));
  }
  if (ids.size() < 2) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("perplexity needs at least two tokens, the text has {}", ids.size()));
  }
  Sums sums;
  for (std::size_t begin = 0; begin + 1 < ids.size(); begin += static_cast<std::size_t>(window)) {
    const std::size_t n = std::min(static_cast<std::size_t>(window), ids.size() - begin);
    add_window(model, executor, ids.subspan(begin, n), options, sums);
  }
  const auto n = static_cast<double>(sums.count);
  const double mean = sums.nll / n;
  const double variance =
      sums.count > 1 ? std::max(0.0, (sums.nll_squared - n * mean * mean) / (n - 1)) : 0.0;
  return {window, sums.count, mean, std::sqrt(variance / n)};
}

}  // namespace kvasir
