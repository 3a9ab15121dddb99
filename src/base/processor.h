// The processor that this program runs on.
#ifndef KVASIR_BASE_PROCESSOR_H_
#define KVASIR_BASE_PROCESSOR_H_

#include <string>
#include <vector>

namespace kvasir {

std::string processor_name();  // as it calls itself; "unknown" where it does not

// The instruction sets that kernels may use and that this processor has, by the names of /proc/cpuinfo.
std::vector<std::string> processor_features();

}  // namespace kvasir

#endif  // KVASIR_BASE_PROCESSOR_H_
