#include "kvasir/observer.h"

namespace kvasir {

const char* to_string(Operation operation) {
  switch (operation) {
    case Operation::kEmbedding:
      return "embedding";
    case Operation::kAttentionNorm:
      return "attention norm";
    case Operation::kQuery:
      return "query";
    case Operation::kKey:
      return "key";
    case Operation::kValue:
      return "value";
    case Operation::kAttention:
      return "attention";
    case Operation::kAttentionOutput:
      return "attention output projection";
    case Operation::kAttentionResidual:
      return "residual after attention";
    case Operation::kFfnNorm:
      return "ffn norm";
    case Operation::kFfnActivation:
      return "ffn activation";
    case Operation::kFfnDown:
      return "ffn down projection";
    case Operation::kFfnResidual:
      return "residual after ffn";
    case Operation::kFinalNorm:
      return "final norm";
    case Operation::kLogits:
      return "logits";
  }
  return "";
}

}  // namespace kvasir
