// Peak loops for AVX-512: alone, with VNNI, with VNNI and BF16, with AMX, too.
#include "kernels/peak_loops.h"

#if defined(__x86_64__)

// GCC 12: see kernels.cc.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"

#include <immintrin.h>

#include <utility>

#include "kernels/avx512/tiles.h"

namespace kvasir::kernels {
namespace {
// Enough to hide the latency of an instruction that starts twice a cycle; there are 32 registers.
constexpr std::size_t kChains = 16;
constexpr std::make_index_sequence<kChains> kEach;
}  // namespace
}  // namespace kvasir::kernels

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl")

namespace kvasir::kernels {
namespace {

// To the compiler the value changes here: it cannot drop what computed it, nor know that chains are alike.
template <class V>
[[gnu::always_inline]] inline void touch(V& value) {
  asm volatile("" : "+v"(value));
}

#include "kernels/simd/peak_chains.h"

void fma_loop(std::int64_t steps) {
  const __m512 factor = _mm512_set1_ps(0.5F), term = _mm512_set1_ps(1.0F);
  run_chains(
      steps, term, [&](__m512& sum) { sum = _mm512_fmadd_ps(sum, factor, term); }, kEach);
}

// Before VNNI: products are summed in pairs, and pairs in 16 bits.
void maddubs_loop(std::int64_t steps) {
  __m512i x = _mm512_set1_epi8(3);
  const __m512i w = _mm512_set1_epi8(5);
  run_chains(
      steps, w,
      [&](__m512i& sum) {
        touch(x);
        sum = _mm512_add_epi16(sum, _mm512_maddubs_epi16(x, w));
      },
      kEach);
}

constexpr PeakLoop kFloats = {fma_loop, kChains * 16 * 2.0};

}  // namespace

PeakLoops avx512_peak_loops() { return {kFloats, kFloats, {maddubs_loop, kChains * 64 * 2.0}}; }

void avx512_read(const std::byte* memory, std::size_t bytes) {
  constexpr std::size_t kVector = sizeof(__m512i), kLoads = 8;
  __m512i sums[kLoads] = {};
  for (const std::byte* end = memory + bytes; memory != end; memory += kLoads * kVector) {
#pragma GCC unroll 8
    for (std::size_t i = 0; i < kLoads; ++i) {
      sums[i] = _mm512_xor_si512(sums[i], _mm512_load_si512(memory + i * kVector));
    }
  }
  for (__m512i& sum : sums) touch(sum);
}

}  // namespace kvasir::kernels

#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")

namespace kvasir::kernels {
namespace {

void vnni_loop(std::int64_t steps) {
  const __m512i x = _mm512_set1_epi8(3), w = _mm512_set1_epi8(5);
  run_chains(
      steps, x, [&](__m512i& sum) { sum = _mm512_dpbusd_epi32(sum, x, w); }, kEach);
}

}  // namespace

PeakLoops avx512vnni_peak_loops() { return {kFloats, kFloats, {vnni_loop, kChains * 64 * 2.0}}; }

}  // namespace kvasir::kernels

#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16")

namespace kvasir::kernels {
namespace {

void bf16_loop(std::int64_t steps) {
  const __m512 halves = _mm512_set1_ps(0.5F);
  const __m512bh pairs = _mm512_cvtne2ps_pbh(halves, halves);
  run_chains(
      steps, halves, [&](__m512& sum) { sum = _mm512_dpbf16_ps(sum, pairs, pairs); }, kEach);
}

}  // namespace

PeakLoops avx512bf16_peak_loops() {
  return {kFloats, {bf16_loop, kChains * 32 * 2.0}, avx512vnni_peak_loops().int8};
}

}  // namespace kvasir::kernels

#pragma GCC pop_options

namespace kvasir::kernels {
namespace {

void tile_loop(std::int64_t steps) {
  constexpr Tiles::Shape kWhole = {kTileRows, kTileRowBytes};
  const Tiles tiles({kWhole, kWhole, kWhole, kWhole, kWhole, kWhole});
  for (std::int64_t i = 0; i < steps; ++i) {
    multiply_tiles<0, 4, 5>();
    multiply_tiles<1, 4, 5>();
    multiply_tiles<2, 4, 5>();
    multiply_tiles<3, 4, 5>();
  }
}

}  // namespace

PeakLoops amx_peak_loops() {
  PeakLoops loops = avx512bf16_peak_loops();
  loops.int8 = {tile_loop, 4 * kTileRows * kTileRows * kTileRowBytes * 2.0};
  return loops;
}

}  // namespace kvasir::kernels

#endif  // defined(__x86_64__)
