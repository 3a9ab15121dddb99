// How well a model predicts a text.
#ifndef KVASIR_PERPLEXITY_H_
#define KVASIR_PERPLEXITY_H_

#include <cstdint>
#include <span>

#include "kvasir/executor.h"
#include "kvasir/model.h"
#include "kvasir/sequence_runner.h"
#include "kvasir/token.h"

namespace kvasir {

struct PerplexityOptions {
  std::int64_t window = 0;  // tokens that are read together, 2 to the context; 0: the context
  RunOptions run{.prefill_chunk = 512};
  KvType kv_type = KvType::kF16;
};

struct PerplexityResult {
  std::int64_t window;
  std::int64_t predicted;  // all tokens but the first of each window
  double mean_nll;         // nats a token, from log-softmax in double
  double standard_error;   // of the mean, taking the tokens as independent
};

// Error(kInvalidArgument) for fewer than two tokens or a window out of range; else as Model::forward.
// Error(kRuntime) if a logit is not finite.
PerplexityResult perplexity(const Model& model, Executor& executor, std::span<const TokenId> ids,
                            const PerplexityOptions& options);

}  // namespace kvasir

#endif  // KVASIR_PERPLEXITY_H_
