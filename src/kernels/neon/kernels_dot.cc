// The kernels for NEON with the dot product extension.
#if defined(__aarch64__)

#include <arm_neon.h>

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
#pragma GCC target("arch=armv8.2-a+dotprod")

namespace kvasir::kernels::neondot {
namespace {

// In this order:
// clang-format off
#include "kernels/neon/vector.h"
#include "kernels/simd/dot.h"
#include "kernels/neon/dot_sdot.h"
#include "kernels/neon/block_dot.h"
#include "kernels/simd/elementwise.h"
#include "kernels/simd/linear.h"
#include "kernels/simd/linear_bf16.h"
#include "kernels/simd/attention.h"
#include "kernels/simd/kernel_set.h"
// clang-format on

}  // namespace
}  // namespace kvasir::kernels::neondot

namespace kvasir::kernels {

const KernelSet& neondot_kernels() {
  static const KernelSet set = neondot::make_kernel_set("neondot");
  return set;
}

}  // namespace kvasir::kernels

#pragma GCC pop_options

#endif  // defined(__aarch64__)
