// The kernels for AMX: those for VNNI and BF16, and tiles where many rows meet block-quantized weights.
#if defined(__x86_64__)

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

#include "kernels/avx512/tiles.h"
#include "kernels/float_functions.h"
#include "kernels/half.h"
#include "kernels/instruction_sets.h"
#include "kernels/kernels.h"

// Standard headers stay outside of this region: their inline functions are shared with code for older
// machines.
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c,avx512vnni,avx512bf16")

namespace kvasir::kernels::amx {
namespace {

// In this order:
// clang-format off
#include "kernels/avx512/vector.h"
#include "kernels/simd/dot.h"
#include "kernels/avx512/dot_vnni.h"
#include "kernels/simd/linear.h"
#include "kernels/avx512/linear_tiles.h"
// clang-format on

// A tile takes as long for one row as for 16: estimated to be worth it from here on.
constexpr std::int64_t kLeastRows = 8;

void linear(const PackedMatrix& w, std::int64_t panel_begin, std::int64_t panel_end, const InputRows& x,
            std::int64_t rows, float* y, std::int64_t y_stride) {
  if (rows >= kLeastRows && input_kind(w.type) == InputKind::kInt8) {
    with_quant_type(
        w.type, [&](auto type) { linear_tiles<type()>(w, panel_begin, panel_end, x, rows, y, y_stride); });
    return;
  }
  avx512bf16_kernels().linear(w, panel_begin, panel_end, x, rows, y, y_stride);
}

}  // namespace
}  // namespace kvasir::kernels::amx

namespace kvasir::kernels {

const KernelSet& amx_kernels() {
  static const KernelSet set = [] {
    KernelSet copy = avx512bf16_kernels();
    copy.name = "amx";
    copy.linear = amx::linear;
    return copy;
  }();
  return set;
}

}  // namespace kvasir::kernels

#pragma GCC pop_options

#endif  // defined(__x86_64__)
