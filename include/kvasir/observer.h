// Intermediate results of a forward pass, for whoever wants to see them: kvasir verify finds with them where
// two paths part.
#ifndef KVASIR_OBSERVER_H_
#define KVASIR_OBSERVER_H_

#include <cstdint>

namespace kvasir {

// In the order in which a layer computes them; what comes before the first layer and after the last one has
// layer -1.
enum class Operation {
  kEmbedding,          // [d_model]
  kAttentionNorm,      // [d_model]
  kQuery,              // [n_head * head_dim], after RoPE
  kKey,                // [n_kv_head * head_dim], after RoPE
  kValue,              // [n_kv_head * head_dim]
  kAttention,          // [n_head * head_dim]
  kAttentionOutput,    // [d_model], the attention's output projection
  kAttentionResidual,  // [d_model], after that was added
  kFfnNorm,            // [d_model]
  kFfnActivation,      // [d_ff], silu(gate) * up, say
  kFfnDown,            // [d_model], the down projection
  kFfnResidual,        // [d_model], after that was added
  kFinalNorm,          // [d_model]
  kLogits,             // [vocab_size]
};

const char* to_string(Operation operation);  // "ffn activation"

class ForwardObserver {
 public:
  virtual ~ForwardObserver() = default;
  // values: [rows][width], valid during the call. Rows are those of all runs in order; of kFinalNorm and
  // kLogits, only those whose logits were asked for. Called on the thread that called Model::forward.
  virtual void computed(Operation operation, std::int32_t layer, std::int64_t rows, const float* values,
                        std::int64_t width) = 0;
};

}  // namespace kvasir

#endif  // KVASIR_OBSERVER_H_
