// The lab "KV cache and sampling" by its own names: a small model with random weights, and generation with
// and without the cache. The model is the real one, the cache the real contiguous cache, the sampler the real
// sampler.
#ifndef KVASIR_LAB_H_
#define KVASIR_LAB_H_

#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "kvasir/config.h"
#include "kvasir/executor.h"
#include "kvasir/kv_cache.h"
#include "kvasir/layers.h"
#include "kvasir/model.h"
#include "kvasir/sampling.h"
#include "kvasir/token.h"

namespace kvasir {

struct Tensor {
  std::vector<std::uint64_t> shape;  // row-major
  std::vector<float> values;
};
using StateDict = std::map<std::string, Tensor>;  // by Hugging Face names

// Weights as PyTorch initialises such layers: linear layers uniform in +-1/sqrt(in), embeddings normal,
// norms 1.
StateDict random_weights(const Config& config, std::uint64_t seed);

class TinyLM {
 public:
  explicit TinyLM(const Config& config, std::uint64_t seed = 0);
  // Error(kFormat) naming the tensor if one is missing, superfluous or of another shape.
  TinyLM(const Config& config, const StateDict& weights);

  // idx: [batch][t]. With a cache: t tokens at the cache's pos, which advances by t. Without: from position
  // 0. Returns logits [batch][t][vocab_size]. Errors as Model::forward.
  std::vector<float> forward(std::span<const TokenId> idx, std::int32_t batch, KvCache* cache = nullptr);

  const Config& config() const { return model_.config(); }
  const Model& model() const { return model_; }
  Executor& executor() { return executor_; }

 private:
  Executor executor_;
  Model model_;
};

// ---- Parts of the model by themselves. x: [batch][t][d_model], the result likewise.
//
// With a cache, the rows stand at its pos, which does not advance. Without: at position 0, with a cache of
// their own. Error(kInvalidArgument): another shape, a layer that the config lacks. Error(kCapacity): the
// cache would overflow. Weights: as in StateDict, without the "model.layers.N." or
// "model.layers.N.self_attn." in front. Error(kFormat) naming the tensor if one is missing, superfluous or of
// another shape.

class LabAttention {
 public:
  LabAttention(const Config& config, std::int32_t layer, const StateDict& weights);
  std::vector<float> forward(std::span<const float> x, std::int32_t batch, KvCache* cache,
                             Executor& executor) const;

 private:
  Config config_;
  Attention attention_;
};

class LabBlock {
 public:
  LabBlock(const Config& config, std::int32_t layer, const StateDict& weights);
  std::vector<float> forward(std::span<const float> x, std::int32_t batch, KvCache* cache,
                             Executor& executor) const;

 private:
  Config config_;
  Block block_;
};

// x: [rows][weight.size()].
std::vector<float> rms_norm(std::span<const float> x, std::span<const float> weight, float eps,
                            Executor& executor);

// x: [n][positions.size()][head_dim]; row t of each turns to positions[t].
// Error(kInvalidArgument) for a negative position, an odd head_dim or a theta that is not positive.
std::vector<float> apply_rope(std::span<const float> x, std::span<const std::int64_t> positions,
                              std::int64_t head_dim, double theta, RopePairing pairing, Executor& executor);

// ---- Generation.

struct LabSampling {
  double temperature = 1.0;
  std::int64_t top_k = 0;  // 0: off
  double top_p = 1.0;
  double min_p = 0.0;
  Generator* generator = nullptr;  // nullptr: a generator with seed 0 for this call
};

// prompt: [batch][p]. Returns [batch][p + max_new_tokens]: the prompt followed by the new tokens.
// prefill_chunk 0: the whole prompt in one run. Error(kCapacity) if prompt and new tokens exceed max_seq.
// after_step is called after every new token of the batch; it may throw to end the generation.
std::vector<TokenId> generate(TinyLM& model, std::span<const TokenId> prompt, std::int32_t batch,
                              std::int64_t max_new_tokens, bool use_cache = true,
                              std::int64_t prefill_chunk = 0, const LabSampling& sampling = {},
                              const std::function<void()>& after_step = {});

}  // namespace kvasir

#endif  // KVASIR_LAB_H_
