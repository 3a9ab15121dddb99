// What this build of Kvasir is.
#ifndef KVASIR_VERSION_H_
#define KVASIR_VERSION_H_

#include <string>

namespace kvasir {

// The version of the arithmetic (docs/arithmetic.md): changes whenever a result changes.
inline constexpr int kArithmeticVersion = 1;

struct BuildInfo {
  std::string version;   // "0.1.0"
  std::string revision;  // of the source when the build was configured, with "-dirty" if it was changed
                         // since; "unknown" outside of a repository
  std::string compiler;  // "GNU 12.2.0"
  std::string type;      // "Release -O3 -DNDEBUG", without arguments that hold a path
};

BuildInfo build_info();

}  // namespace kvasir

#endif  // KVASIR_VERSION_H_
