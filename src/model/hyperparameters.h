// A model's shape from the metadata of its file.
#ifndef KVASIR_MODEL_HYPERPARAMETERS_H_
#define KVASIR_MODEL_HYPERPARAMETERS_H_

#include "formats/gguf.h"
#include "kvasir/config.h"

namespace kvasir {

// Error(kFormat) naming file and key for an architecture that is not supported, a value that cannot be, or a
// feature that would change the results and is not implemented.
Config config_from_gguf(const GgufFile& file);

}  // namespace kvasir

#endif  // KVASIR_MODEL_HYPERPARAMETERS_H_
