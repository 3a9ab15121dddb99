// The kernels for AVX2 + FMA + F16C.
#if defined(__x86_64__)

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
#pragma GCC target("avx2,fma,f16c")

namespace kvasir::kernels::avx2 {
namespace {

// In this order:
// clang-format off
#include "kernels/avx2/vector.h"
#include "kernels/simd/dot.h"
#include "kernels/avx2/dot_madd.h"
#include "kernels/simd/elementwise.h"
#include "kernels/simd/linear.h"
#include "kernels/simd/linear_bf16.h"
#include "kernels/simd/attention.h"
#include "kernels/simd/kernel_set.h"
// clang-format on

}  // namespace
}  // namespace kvasir::kernels::avx2

namespace kvasir::kernels {

const KernelSet& avx2_kernels() {
  static const KernelSet set = avx2::make_kernel_set("avx2");
  return set;
}

}  // namespace kvasir::kernels

#pragma GCC pop_options

#endif  // defined(__x86_64__)
