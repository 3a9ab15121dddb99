// Runs a model over sequences that grow, by one of several ways of cutting the work into runs.
#ifndef KVASIR_SEQUENCE_RUNNER_H_
#define KVASIR_SEQUENCE_RUNNER_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "kvasir/executor.h"
#include "kvasir/kv_cache.h"
#include "kvasir/model.h"
#include "kvasir/token.h"

namespace kvasir {

// How the work is cut. None of this changes a bit of any result.
struct RunOptions {
  bool use_cache = true;  // false: every append() runs the whole sequence again, from position 0, in a fresh
                          // cache. The slow path that everything else is held against.
  std::int64_t prefill_chunk =
      0;  // tokens a run at most; 0: all of them in one run. Without a cache: not used.
};

// `batch` sequences of equal length. Not for use by several threads at once.
class SequenceRunner {
 public:
  // Model and executor must outlive the runner. max_seq: positions to make room for, at most the model's.
  // Error(kInvalidArgument) for a negative chunk, or a max_seq below 1 or above the model's.
  SequenceRunner(const Model& model, Executor& executor, std::int32_t batch, std::int64_t max_seq,
                 KvType kv_type, RunOptions options);

  // Appends t tokens to every sequence, tokens: [batch][t]. Returns the logits of the last n_logits of them,
  // [batch][n_logits][vocab_size], valid until the next call. Errors as Model::forward.
  std::span<const float> append(std::span<const TokenId> tokens, std::int64_t n_logits = 1);

  std::int64_t length() const { return length_; }  // tokens so far, of each sequence

 private:
  void run_chunk(std::span<const TokenId> tokens, std::int64_t begin, std::int64_t end, std::int64_t n_logits,
                 KvCache& cache, std::int64_t cache_start);

  const Model& model_;
  Executor& executor_;
  std::int64_t batch_;
  std::int64_t max_seq_;
  KvType kv_type_;
  RunOptions options_;
  std::int64_t length_ = 0;
  std::optional<KvCache> cache_;                 // with use_cache
  std::vector<std::vector<TokenId>> sequences_;  // [batch], without use_cache
  std::vector<float> chunk_logits_;              // of one run_chunk
  std::vector<float> logits_;                    // [batch][n_logits][vocab_size]
};

}  // namespace kvasir

#endif  // KVASIR_SEQUENCE_RUNNER_H_
