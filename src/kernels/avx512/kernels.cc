// The kernels for AVX-512 (F, BW, DQ, VL).
#if defined(__x86_64__) && !defined(KVASIR_ONE_AVX512_SET)

// GCC 12: its AVX-512 headers pass on values that were never set, on purpose, and its warnings do not know.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"

#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <tuple>
#include <type_traits>
#include <utility>

#include "kernels/float_functions.h"
#include "kernels/half.h"
#include "kernels/instruction_sets.h"
#include "kernels/kernels.h"

// Standard headers stay outside of this region: their inline functions are shared with code for older
// machines.
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")

namespace kvasir::kernels::avx512 {
namespace {

// In this order:
// clang-format off
#include "kernels/avx512/vector.h"
#include "kernels/simd/dot.h"
#include "kernels/avx512/dot_madd.h"
#include "kernels/simd/elementwise.h"
#include "kernels/simd/linear.h"
#include "kernels/simd/linear_bf16.h"
#include "kernels/simd/attention.h"
#include "kernels/simd/kernel_set.h"
// clang-format on

}  // namespace
}  // namespace kvasir::kernels::avx512

namespace kvasir::kernels {

const KernelSet& avx512_kernels() {
  static const KernelSet set = avx512::make_kernel_set("avx512");
  return set;
}

}  // namespace kvasir::kernels

#pragma GCC pop_options

#endif  // defined(__x86_64__) && !defined(KVASIR_ONE_AVX512_SET)
