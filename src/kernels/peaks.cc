#include "kernels/peaks.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <stdexcept>
#include <string_view>

#include "kernels/peak_loops.h"

namespace kvasir::kernels {
namespace {

constexpr std::size_t kReadPiece = std::size_t{1} << 20;
constexpr double kPieceSeconds = 1e-4;
constexpr std::int64_t kPiecesPerThread = 40;
constexpr int kScalarChains = 8;

double seconds_of(auto&& fn) {
  const auto start = std::chrono::steady_clock::now();
  fn();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

// To the compiler every value changes here: it can neither drop nor join nor vectorize the chains.
template <class T>
[[gnu::always_inline]] inline void touch_memory(T& values) {
  asm volatile("" : "+m"(values));
}

void scalar_fma_loop(std::int64_t steps) {
  float sums[kScalarChains] = {};
  for (std::int64_t i = 0; i < steps; ++i) {
    for (float& sum : sums) {
      sum = std::fma(sum, 0.5F, 1.0F);
      touch_memory(sum);
    }
  }
}

void scalar_int8_loop(std::int64_t steps) {
  std::int8_t x = 3, w = 5;
  std::int32_t sums[kScalarChains] = {};
  for (std::int64_t i = 0; i < steps; ++i) {
    for (std::int32_t& sum : sums) {
      touch_memory(x);
      sum += x * w;
    }
    touch_memory(sums);
  }
}

void scalar_read(const std::byte* memory, std::size_t bytes) {
  std::uint64_t sums[8] = {};
  const auto* words = reinterpret_cast<const std::uint64_t*>(memory);
  for (const std::uint64_t* end = words + bytes / sizeof(std::uint64_t); words != end; words += 8) {
    for (int i = 0; i < 8; ++i) sums[i] ^= words[i];
  }
  touch_memory(sums);
}

PeakLoops loops_of(const KernelSet& set) {
  const std::string_view name = set.name;
#if defined(__x86_64__)
  if (name == "avx2") return avx2_peak_loops();
  if (name == "avx512") return avx512_peak_loops();
  if (name == "avx512vnni") return avx512vnni_peak_loops();
  if (name == "avx512bf16") return avx512bf16_peak_loops();
  if (name == "amx") return amx_peak_loops();
#elif defined(__aarch64__)
  if (name == "neon") return neon_peak_loops();
  if (name == "neondot") return neondot_peak_loops();
#endif
  if (name != "scalar") throw std::logic_error("peaks: no loops for this kernel set");
  const PeakLoop floats = {scalar_fma_loop, kScalarChains * 2.0};
  return {floats, floats, {scalar_int8_loop, kScalarChains * 2.0}};
}

ReadLoop widest_read() {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) return avx512_read;
  if (__builtin_cpu_supports("avx2")) return avx2_read;
#endif
  return scalar_read;
}

std::size_t memory_size() {
  constexpr std::size_t kLeast = std::size_t{256} << 20, kMost = std::size_t{4} << 30;
  const long cache = std::max(0L, sysconf(_SC_LEVEL3_CACHE_SIZE));
  return std::clamp(4 * static_cast<std::size_t>(cache) / kReadPiece * kReadPiece, kLeast, kMost);
}

}  // namespace

PeakMeter::PeakMeter() : memory_(memory_size()) {}

double PeakMeter::read_bandwidth(ThreadPool& pool) const {
  const ReadLoop read = widest_read();
  const auto pieces = static_cast<std::int64_t>(memory_.size() / kReadPiece);
  const double seconds = seconds_of([&] {
    pool.parallel_for(pieces, [&](std::int64_t piece) {
      read(memory_.data() + static_cast<std::size_t>(piece) * kReadPiece, kReadPiece);
    });
  });
  return static_cast<double>(memory_.size()) / seconds;
}

double PeakMeter::operations(const KernelSet& set, InputKind inputs, ThreadPool& pool) const {
  const PeakLoops loops = loops_of(set);
  const PeakLoop& loop = inputs == InputKind::kFloat  ? loops.floats
                         : inputs == InputKind::kBF16 ? loops.bf16
                                                      : loops.int8;
  std::int64_t steps = 64;
  while (seconds_of([&] { loop.run(steps); }) < kPieceSeconds) steps *= 2;
  const std::int64_t pieces = kPiecesPerThread * pool.threads();
  const double seconds =
      seconds_of([&] { pool.parallel_for(pieces, [&](std::int64_t) { loop.run(steps); }); });
  return loop.operations * static_cast<double>(steps) * static_cast<double>(pieces) / seconds;
}

}  // namespace kvasir::kernels
