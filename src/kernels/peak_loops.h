// Loops that keep one kind of instruction busy and do nothing else, for peaks.cc.
#ifndef KVASIR_KERNELS_PEAK_LOOPS_H_
#define KVASIR_KERNELS_PEAK_LOOPS_H_

#include <cstddef>
#include <cstdint>

namespace kvasir::kernels {

struct PeakLoop {
  void (*run)(std::int64_t steps);
  double operations;  // of one step; a multiply-add is two
};

// For each kind of inputs the instructions of one kernel set.
struct PeakLoops {
  PeakLoop floats, bf16, int8;
};

// Reads every byte; bytes: a multiple of kReadStep.
using ReadLoop = void (*)(const std::byte* memory, std::size_t bytes);
inline constexpr std::size_t kReadStep = 1024;

#if defined(__x86_64__)
PeakLoops avx2_peak_loops();
PeakLoops avx512_peak_loops();
PeakLoops avx512vnni_peak_loops();
PeakLoops avx512bf16_peak_loops();
PeakLoops amx_peak_loops();
void avx2_read(const std::byte* memory, std::size_t bytes);
void avx512_read(const std::byte* memory, std::size_t bytes);
#elif defined(__aarch64__)
PeakLoops neon_peak_loops();
PeakLoops neondot_peak_loops();
#endif

}  // namespace kvasir::kernels

#endif  // KVASIR_KERNELS_PEAK_LOOPS_H_
