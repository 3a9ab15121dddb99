// Weights as the kernels want them: 16 neighbouring outputs side by side (a "panel"), so that the lanes of a
// vector are different outputs and each output's sum keeps its defined order whatever the width of the
// vector.
#ifndef KVASIR_KERNELS_PACKED_MATRIX_H_
#define KVASIR_KERNELS_PACKED_MATRIX_H_

#include <cstddef>
#include <cstdint>

#include "base/aligned_buffer.h"
#include "base/tensor_type.h"
#include "kvasir/config.h"

namespace kvasir::kernels {

inline constexpr std::int64_t kPanel = 16;       // outputs side by side
inline constexpr std::int64_t kSegment = 256;    // inputs summed in one chain
inline constexpr std::int64_t kQuantBlock = 32;  // inputs that share one activation scale
inline constexpr std::int64_t kSubBlock = 16;  // inputs that share one integer scale of a K-quant, or one sum
inline constexpr std::int64_t kDotGroup = 4;   // inputs side by side for the integer dot products

enum class WeightLayout {
  kF32,         // float32 weights, float32 inputs
  kBF16,        // bfloat16 weights (kept as float32 here), inputs rounded to bfloat16
  kInt8,        // w = scale * q
  kInt8Min,     // w = scale * q + min
  kSuperBlock,  // w = (d * sub_scale) * q - dmin * sub_min, in super-blocks of 256
};

// y[n] = sum over k of x[k] * w[n, k].
struct PackedMatrix {
  WeightLayout layout = WeightLayout::kF32;
  std::int64_t n = 0;                 // outputs
  std::int64_t k = 0;                 // inputs
  AlignedBuffer<float> floats;        // kF32, kBF16: [panels][k][16]
  AlignedBuffer<std::int8_t> quants;  // integer layouts: [panels][k / 4][16][4]
  AlignedBuffer<float> scales;        // [panels][k / 32][16]; kSuperBlock: d, [panels][k / 256][16]
  AlignedBuffer<float> mins;  // kInt8Min: [panels][k / 32][16]; kSuperBlock: dmin, [panels][k / 256][16]
  AlignedBuffer<std::int16_t> sub_scales;  // kSuperBlock: [panels][k / 16][16]
  AlignedBuffer<std::int16_t> sub_mins;    // kSuperBlock: [panels][k / 32][16]

  std::int64_t panels() const { return (n + kPanel - 1) / kPanel; }
  std::size_t nbytes() const;
};

// An empty matrix of the layout that `type` takes, to be filled panel by panel (panels may be packed in
// parallel).
PackedMatrix make_packed_matrix(TensorType type, std::int64_t n, std::int64_t k, Activations activations);

// Fills one panel from the stored matrix: n rows of k values of `type`, row-major.
void pack_panel(PackedMatrix& matrix, TensorType type, const std::byte* rows, std::int64_t panel);

}  // namespace kvasir::kernels

#endif  // KVASIR_KERNELS_PACKED_MATRIX_H_
