// Peak loops for AVX2.
#include "kernels/peak_loops.h"

#if defined(__x86_64__)

#include <immintrin.h>

#include <utility>

#pragma GCC push_options
#pragma GCC target("avx2,fma")

namespace kvasir::kernels {
namespace {

// Enough to hide the latency of an instruction that starts twice a cycle; there are 16 registers.
constexpr std::size_t kChains = 12;
constexpr std::make_index_sequence<kChains> kEach;

// To the compiler the value changes here: it cannot drop what computed it, nor know that chains are alike.
template <class V>
[[gnu::always_inline]] inline void touch(V& value) {
  asm volatile("" : "+x"(value));
}

#include "kernels/simd/peak_chains.h"

void fma_loop(std::int64_t steps) {
  const __m256 factor = _mm256_set1_ps(0.5F), term = _mm256_set1_ps(1.0F);
  run_chains(
      steps, term, [&](__m256& sum) { sum = _mm256_fmadd_ps(sum, factor, term); }, kEach);
}

// Before VNNI: products are summed in pairs, and pairs in 16 bits.
void maddubs_loop(std::int64_t steps) {
  __m256i x = _mm256_set1_epi8(3);
  const __m256i w = _mm256_set1_epi8(5);
  run_chains(
      steps, w,
      [&](__m256i& sum) {
        touch(x);
        sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(x, w));
      },
      kEach);
}

}  // namespace

PeakLoops avx2_peak_loops() {
  const PeakLoop floats = {fma_loop, kChains * 8 * 2.0};
  return {floats, floats, {maddubs_loop, kChains * 32 * 2.0}};
}

void avx2_read(const std::byte* memory, std::size_t bytes) {
  constexpr std::size_t kVector = sizeof(__m256i), kLoads = 8;
  __m256i sums[kLoads] = {};
  for (const std::byte* end = memory + bytes; memory != end; memory += kLoads * kVector) {
#pragma GCC unroll 8
    for (std::size_t i = 0; i < kLoads; ++i) {
      sums[i] = _mm256_xor_si256(sums[i],
                                 _mm256_load_si256(reinterpret_cast<const __m256i*>(memory + i * kVector)));
    }
  }
  for (__m256i& sum : sums) touch(sum);
}

}  // namespace kvasir::kernels

#pragma GCC pop_options

#endif  // defined(__x86_64__)
