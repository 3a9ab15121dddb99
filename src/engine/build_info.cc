#include "kvasir/version.h"

namespace kvasir {

BuildInfo build_info() {
  return {.version = KVASIR_VERSION,
          .revision = KVASIR_REVISION,
          .compiler = KVASIR_COMPILER,
          .type = KVASIR_BUILD_TYPE};
}

}  // namespace kvasir
