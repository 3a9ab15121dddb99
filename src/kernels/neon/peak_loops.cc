// Peak loops for NEON: alone, with the dot product extension.
#include "kernels/peak_loops.h"

#if defined(__aarch64__)

#include <arm_neon.h>

#include <utility>

namespace kvasir::kernels {
namespace {

// Enough to hide the latency of an instruction that starts four times a cycle; there are 32 registers.
constexpr std::size_t kChains = 16;
constexpr std::make_index_sequence<kChains> kEach;

// To the compiler the value changes here: it cannot drop what computed it, nor know that chains are alike.
template <class V>
[[gnu::always_inline]] inline void touch(V& value) {
  asm volatile("" : "+w"(value));
}

#include "kernels/neon/dot_mull.h"
#include "kernels/simd/peak_chains.h"

void fma_loop(std::int64_t steps) {
  const float32x4_t factor = vdupq_n_f32(0.5F), term = vdupq_n_f32(1.0F);
  run_chains(
      steps, term, [&](float32x4_t& sum) { sum = vfmaq_f32(term, sum, factor); }, kEach);
}

void mull_loop(std::int64_t steps) {
  int8x16_t x = vdupq_n_s8(3);
  const int8x16_t w = vdupq_n_s8(5);
  run_chains(
      steps, vdupq_n_s32(1),
      [&](int32x4_t& sum) {
        touch(x);
        sum = add_products(sum, w, x);
      },
      kEach);
}

constexpr PeakLoop kFloats = {fma_loop, kChains * 4 * 2.0};

}  // namespace

PeakLoops neon_peak_loops() { return {kFloats, kFloats, {mull_loop, kChains * 16 * 2.0}}; }

}  // namespace kvasir::kernels

#pragma GCC push_options
#pragma GCC target("arch=armv8.2-a+dotprod")

namespace kvasir::kernels {
namespace {

void dot_loop(std::int64_t steps) {
  const int8x16_t x = vdupq_n_s8(3), w = vdupq_n_s8(5);
  run_chains(
      steps, vdupq_n_s32(1), [&](int32x4_t& sum) { sum = vdotq_s32(sum, w, x); }, kEach);
}

}  // namespace

PeakLoops neondot_peak_loops() { return {kFloats, kFloats, {dot_loop, kChains * 16 * 2.0}}; }

}  // namespace kvasir::kernels

#pragma GCC pop_options

#endif  // defined(__aarch64__)
