#include "base/elementary.h"

namespace kvasir {
namespace {

[[gnu::always_inline]] inline void exp_all(std::span<double> x) {
  for (double& value : x) value = defined_exp(value);
}

#if defined(__x86_64__)
// Three to four times as fast as the baseline, whose vectors lack the 64-bit comparisons.
[[gnu::target("avx2")]] void exp_all_avx2(std::span<double> x) { exp_all(x); }
#endif

}  // namespace

void defined_exp_all(std::span<double> x) {
#if defined(__x86_64__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2");
  if (has_avx2) return exp_all_avx2(x);
#endif
  exp_all(x);
}

}  // namespace kvasir
