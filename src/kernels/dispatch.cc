// Which kernel sets this machine can run, and which one to take.
#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/instruction_sets.h"
#include "kernels/kernels.h"
#include "kvasir/error.h"

namespace kvasir::kernels {
namespace {

constexpr std::string_view kKnownNames[] = {"scalar",     "avx2", "avx512", "avx512vnni",
                                            "avx512bf16", "amx",  "neon",   "neondot"};

#if defined(__x86_64__)
bool has_f16c() {  // __builtin_cpu_supports does not know it in every compiler
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
#endif

std::vector<const KernelSet*> detect() {
  std::vector<const KernelSet*> sets = {&reference_kernels()};
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c()) {
    sets.push_back(&avx2_kernels());
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
#if !defined(KVASIR_ONE_AVX512_SET)
      sets.push_back(&avx512_kernels());
#endif
      if (__builtin_cpu_supports("avx512vnni")) {
#if !defined(KVASIR_ONE_AVX512_SET)
        sets.push_back(&avx512vnni_kernels());
#endif
        if (__builtin_cpu_supports("avx512bf16") && avx512bf16_is_as_defined()) {
          sets.push_back(&avx512bf16_kernels());
          if (request_amx()) sets.push_back(&amx_kernels());
        }
      }
    }
  }
#elif defined(__aarch64__)
  sets.push_back(&neon_kernels());
  if ((getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0) sets.push_back(&neondot_kernels());
#endif
  return sets;
}

}  // namespace

std::span<const KernelSet* const> available_kernels() {
  static const std::vector<const KernelSet*> sets = detect();
  return sets;
}

const KernelSet& default_kernels() {
  const auto sets = available_kernels();
  const char* wanted = std::getenv("KVASIR_ISA");
  if (wanted == nullptr || *wanted == '\0') return *sets.back();
  std::string names;
  for (const KernelSet* set : sets) {
    if (std::string_view(wanted) == set->name) return *set;
    names += names.empty() ? set->name : std::string(", ") + set->name;
  }
  bool known = false;
  for (const std::string_view name : kKnownNames) known = known || name == wanted;
  throw Error(ErrorKind::kInvalidArgument, std::string("KVASIR_ISA=") + wanted +
                                               (known ? ": this machine lacks that instruction set; it has "
                                                      : ": no such kernel set; this machine has ") +
                                               names);
}

}  // namespace kvasir::kernels
