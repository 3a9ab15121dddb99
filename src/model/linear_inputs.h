// The rows that go into one or more linear layers, converted once for all of them.
#ifndef KVASIR_MODEL_LINEAR_INPUTS_H_
#define KVASIR_MODEL_LINEAR_INPUTS_H_

#include <cstdint>

#include "base/aligned_buffer.h"
#include "kernels/kernels.h"
#include "kvasir/executor.h"

namespace kvasir {

struct Executor::LinearInputs {
  // x: [rows][k]; must stay unchanged until the next set().
  void set(const float* x, std::int64_t rows, std::int64_t k);

  // The rows as weights of this kind take them; converted when first asked for.
  kernels::InputRows get(kernels::InputKind kind, Executor& executor);

  std::int64_t rows() const { return rows_; }
  std::int64_t k() const { return k_; }

 private:
  const float* x_ = nullptr;
  std::int64_t rows_ = 0;
  std::int64_t k_ = 0;
  bool quantized_ = false;
  bool rounded_ = false;
  AlignedBuffer<std::int8_t> quants_;  // [rows][k]
  AlignedBuffer<float> scales_;        // [rows][k / 32]
  AlignedBuffer<std::int32_t> sums_;   // [rows][k / 16]
  AlignedBuffer<std::uint32_t> bf16_;  // [rows][(k + 1) / 2]
};

}  // namespace kvasir

#endif  // KVASIR_MODEL_LINEAR_INPUTS_H_
