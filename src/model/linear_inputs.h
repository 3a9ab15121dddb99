// The rows that go into one or more linear layers, converted once for all of them.
#ifndef KVASIR_MODEL_LINEAR_INPUTS_H_
#define KVASIR_MODEL_LINEAR_INPUTS_H_

#include <cstdint>
#include <span>

#include "base/aligned_buffer.h"
#include "kernels/kernels.h"
#include "kvasir/executor.h"
#include "kvasir/layers.h"

namespace kvasir {

struct Executor::LinearInputs {
  // Completes each row of x, [rows][k], with the maker (if it does anything) and converts it to what the
  // kinds ask for, in one pass.
  void set(Executor& executor, const float* x, std::int64_t rows, std::int64_t k,
           std::span<const kernels::InputKind> kinds, const RowMaker& maker);

  // The rows, in all the representations that were asked for.
  const kernels::InputRows& rows() const { return rows_; }

 private:
  void convert(const kernels::KernelSet& kernels, kernels::InputKind kind, std::int64_t row);

  kernels::InputRows rows_;
  AlignedBuffer<kernels::QuantizedBlock> blocks_;  // [rows][k / 32]
  AlignedBuffer<std::uint32_t> bf16_;              // [rows][(k + 1) / 2]
};

}  // namespace kvasir

#endif  // KVASIR_MODEL_LINEAR_INPUTS_H_
