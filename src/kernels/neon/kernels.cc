// The kernels for NEON, which every 64-bit Arm processor has.
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

namespace kvasir::kernels::neon {
namespace {

// In this order:
// clang-format off
#include "kernels/neon/vector.h"
#include "kernels/simd/dot.h"
#include "kernels/neon/dot_mull.h"
#include "kernels/neon/block_dot.h"
#include "kernels/simd/elementwise.h"
#include "kernels/simd/linear.h"
#include "kernels/simd/linear_bf16.h"
#include "kernels/simd/attention.h"
#include "kernels/simd/kernel_set.h"
// clang-format on

}  // namespace
}  // namespace kvasir::kernels::neon

namespace kvasir::kernels {

const KernelSet& neon_kernels() {
  static const KernelSet set = neon::make_kernel_set("neon");
  return set;
}

}  // namespace kvasir::kernels

#endif  // defined(__aarch64__)
