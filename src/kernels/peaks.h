// What this machine can do at most, measured: the ceilings that a benchmark holds its figures against.
#ifndef KVASIR_KERNELS_PEAKS_H_
#define KVASIR_KERNELS_PEAKS_H_

#include <cstddef>

#include "base/aligned_buffer.h"
#include "base/thread_pool.h"
#include "kernels/kernels.h"

namespace kvasir::kernels {

// Measures with all threads of a pool, a few milliseconds each time. What else the machine has to do lowers a
// ceiling as it lowers a figure, so measure both in turn.
class PeakMeter {
 public:
  PeakMeter();  // takes at least 256 MB of memory, more than the last-level cache holds

  // Bytes a second from memory, read in order.
  double read_bandwidth(ThreadPool& pool) const;

  // Operations a second (a multiply-add is two) of the instructions with which this kernel set multiplies
  // such inputs with weights, on registers alone.
  double operations(const KernelSet& set, InputKind inputs, ThreadPool& pool) const;

 private:
  AlignedBuffer<std::byte> memory_;
};

}  // namespace kvasir::kernels

#endif  // KVASIR_KERNELS_PEAKS_H_
