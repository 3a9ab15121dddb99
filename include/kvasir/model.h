// A decoder-only language model and its one forward pass.
#ifndef KVASIR_MODEL_H_
#define KVASIR_MODEL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kvasir/config.h"
#include "kvasir/executor.h"
#include "kvasir/kv_cache.h"
#include "kvasir/token.h"

namespace kvasir {

class GgufFile;
class WeightSource;

// Consecutive tokens of one sequence. Every way of running a model is a way of cutting its work into runs:
// the uncached baseline is one run from position 0, chunked prefill several runs in order, decoding runs of
// one token, a batch the runs of several sequences in one call.
struct Run {
  std::int32_t sequence = 0;        // of the cache
  std::span<const TokenId> tokens;  // at least one
  std::int64_t first_position =
      0;                      // at most the sequence's length in the cache; less than that rewrites its end
  std::int64_t n_logits = 1;  // logits wanted for so many of the run's last tokens (0 to tokens.size())
};

// Told from time to time what share of a model has been loaded, up to 1.
using LoadProgress = std::function<void(double share)>;

// Immutable once loaded; several threads may run it at once, each with its own Executor and cache.
class Model {
 public:
  // Error(kFormat) naming file and field if the file does not hold a model of a supported architecture.
  // All that is needed is packed into memory of the model's own; the file's pages are given back.
  static Model from_gguf(const GgufFile& file, Activations activations, Executor& executor,
                         const LoadProgress& progress = {});

  // From tensors under Hugging Face names (model.embed_tokens.weight, model.layers.0.self_attn.q_proj.weight,
  // ...). Without lm_head.weight the output shares the embedding.
  Model(const Config& config, const WeightSource& weights, Activations activations, Executor& executor,
        const LoadProgress& progress = {});
  ~Model();
  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;

  const Config& config() const;
  std::size_t weight_bytes() const;  // of the packed weights
  Activations activations() const;

  // Runs all layers for all runs, writes their keys and values into the cache and advances it to the end of
  // each run. logits: [sum of n_logits][vocab_size], rows in the order of the runs. Error(kInvalidArgument):
  // an id outside the vocabulary, a run without tokens, a first position beyond what is in the cache, a
  // sequence that the cache lacks or that occurs twice, a cache of another shape. Error(kCapacity): the
  // sequence would outgrow the cache. Nothing is computed or written then.
  void forward(std::span<const Run> runs, SequenceCache& cache, Executor& executor,
               std::vector<float>& logits) const;

 private:
  struct State;
  std::unique_ptr<const State> state_;
};

}  // namespace kvasir

#endif  // KVASIR_MODEL_H_
