#ifndef KVASIR_ENGINE_LAB_WEIGHTS_H_
#define KVASIR_ENGINE_LAB_WEIGHTS_H_

#include "kvasir/lab.h"
#include "model/weight_source.h"

namespace kvasir {

// The lab's weights as the model's loader takes them.
MemoryWeights memory_weights(const StateDict& state);

}  // namespace kvasir

#endif  // KVASIR_ENGINE_LAB_WEIGHTS_H_
