// Kernel sets with one wrong bit. What watches over the arithmetic must notice it, and its tests prove that.
#ifndef KVASIR_KERNELS_FAULTY_H_
#define KVASIR_KERNELS_FAULTY_H_

#include <span>
#include <string_view>
#include <vector>

#include "kernels/kernels.h"
#include "kvasir/observer.h"

namespace kvasir::kernels {

struct FaultyKernel {
  std::string_view name;  // of the member of KernelSet
  // The intermediate result by which one call is told from all others: whatever the schedule and the threads,
  // its numbers are the same.
  Operation recognised_by;
  void (*install)(KernelSet& set);
};

// One for each kernel.
std::span<const FaultyKernel> faulty_kernels();

// A copy of `real` in which one kernel flips the lowest bit of one number, and only in the call that meets
// `row`, one row of the result `recognised_by`. The next call of this function changes what the last one
// returned, so that only one may be in use.
const KernelSet& with_fault(const KernelSet& real, const FaultyKernel& kernel, std::vector<float> row);

}  // namespace kvasir::kernels

#endif  // KVASIR_KERNELS_FAULTY_H_
