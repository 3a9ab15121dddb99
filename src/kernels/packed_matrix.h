// Weights as the kernels want them: 16 neighbouring outputs side by side (a "panel"), so that the lanes of a
// vector are different outputs and each output's sum keeps its defined order whatever the width of the
// vector. Every stored type keeps its own width.
#ifndef KVASIR_KERNELS_PACKED_MATRIX_H_
#define KVASIR_KERNELS_PACKED_MATRIX_H_

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <stdexcept>

#include "base/memory_arena.h"
#include "base/tensor_type.h"
#include "kernels/dequantize.h"
#include "kernels/half.h"
#include "kernels/unaligned.h"
#include "kvasir/config.h"

namespace kvasir::kernels {

inline constexpr std::int64_t kPanel = 16;       // outputs side by side
inline constexpr std::int64_t kSegment = 256;    // inputs summed in one chain
inline constexpr std::int64_t kQuantBlock = 32;  // inputs that share one activation scale
inline constexpr std::int64_t kSubBlock = 16;  // inputs that share one integer scale of a K-quant, or one sum
inline constexpr std::int64_t kDotGroup = 4;   // inputs side by side for the integer dot products
inline constexpr std::int64_t kGroups = kQuantBlock / kDotGroup;  // groups of a block

// What the inputs of a linear layer are rounded to, by the type of its weights.
enum class InputKind { kFloat, kBF16, kInt8 };
InputKind input_kind(TensorType type);

// How a block-quantized type is packed.
struct QuantFormat {
  int bits;
  int zero_point;  // code = quant + zero_point
  bool mins;       // a min for each block of 32
  int sub_scales;  // K-quants: integer scales of a super-block, 8 or 16; else 0
};

constexpr QuantFormat quant_format(TensorType type) {
  switch (type) {
    case TensorType::kQ8_0:
      return {8, 128, false, 0};
    case TensorType::kQ4_0:
      return {4, 8, false, 0};
    case TensorType::kQ4_1:
      return {4, 0, true, 0};
    case TensorType::kQ5_0:
      return {5, 16, false, 0};
    case TensorType::kQ5_1:
      return {5, 0, true, 0};
    case TensorType::kQ4_K:
      return {4, 0, true, 8};
    case TensorType::kQ5_K:
      return {5, 0, true, 8};
    case TensorType::kQ6_K:
      return {6, 32, false, 16};
    case TensorType::kF32:
    case TensorType::kF16:
    case TensorType::kBF16:
      break;
  }
  throw std::logic_error("quant_format: not a block-quantized type");
}

// Where the parts of one segment of one panel lie, in bytes from its start; each part starts on a cache line.
//
// Floats: `codes` holds [inputs][16]; for BF16 [inputs / 2, rounded up][16] pairs, the even input in the high
// half of 32 bits.
//
// Block-quantized weights: the codes are unsigned, the quant plus the zero point of its format. A group is
// 64 bytes: 16 outputs x 4 inputs.
//   8 bits: 8 groups a block
//   4 bits: [4][64], the low nibble for group g, the high one for group g + 4
//   5 bits: as 4 bits, then [64], where bit g is the fifth bit of group g
//   6 bits: as 4 bits, then [2][64], where bits 2 g and 2 g + 1 are the top bits of group g (second: g + 4)
// Scales: binary16 [blocks][16] and, with mins, the same again; for K-quants d [16] and dmin [16] in
// binary16, then sub_scales [8 or 16][16] in 8 bits (Q6_K: signed), and sub_mins [8][16].
struct SegmentLayout {
  std::size_t scales = 0, mins = 0;
  std::size_t sub_scales = 0, sub_mins = 0;
  std::size_t codes = 0;  // [blocks][block_bytes]
  std::size_t block_bytes = 0;
  std::size_t bytes = 0;
};
SegmentLayout segment_layout(TensorType type, std::int64_t inputs);

// y[n] = sum over k of x[k] * w[n, k].
struct PackedMatrix {
  TensorType type = TensorType::kF32;
  std::int64_t n = 0;  // outputs
  std::int64_t k = 0;  // inputs
  std::shared_ptr<std::byte[]> data;

  std::int64_t panels() const { return (n + kPanel - 1) / kPanel; }
  std::int64_t segments() const { return (k + kSegment - 1) / kSegment; }
  std::int64_t segment_inputs(std::int64_t segment) const {
    return std::min(kSegment, k - segment * kSegment);
  }
  std::size_t nbytes() const { return static_cast<std::size_t>(panels()) * panel_bytes; }

  // Set by make_packed_matrix.
  SegmentLayout full_segment, last_segment;
  std::size_t panel_bytes = 0;

  const SegmentLayout& layout(std::int64_t segment) const {
    return segment + 1 == segments() ? last_segment : full_segment;
  }
  const std::byte* at(std::int64_t panel, std::int64_t segment) const {
    return data.get() + static_cast<std::size_t>(panel) * panel_bytes +
           static_cast<std::size_t>(segment) * full_segment.bytes;
  }
};

// An empty matrix for weights stored as `type`, to be filled panel by panel (panels may be packed in
// parallel). With float activations, block-quantized weights are held as float32.
PackedMatrix make_packed_matrix(TensorType type, std::int64_t n, std::int64_t k, Activations activations,
                                MemoryArena& memory);

// Fills one panel from the stored matrix: n rows of k values of `type`, row-major.
void pack_panel(PackedMatrix& matrix, TensorType type, const std::byte* rows, std::int64_t panel);

// A weight of float type: input i of a segment, one lane of its panel.
inline float packed_float(TensorType type, const std::byte* segment, std::int64_t i, std::int64_t lane) {
  const auto at = [&](std::int64_t column) { return static_cast<std::size_t>(column * kPanel + lane); };
  if (type == TensorType::kF32) return std::bit_cast<float>(read_u32(segment + 4 * at(i)));
  if (type == TensorType::kF16) return f16_to_f32(read_u16(segment + 2 * at(i)));
  return bf16_of_pair(read_u32(segment + 4 * at(i / 2)), i);
}

// Block b of one output, as unpack_block gives it for the stored weights.
void unpack_packed_block(const PackedMatrix& matrix, std::int64_t output, std::int64_t b, QuantBlock& block);

// The k weights of one output as dequantize gives them for the stored ones (BF16: those below 2^-48 are
// zero).
void dequantize_output(const PackedMatrix& matrix, std::int64_t output, std::span<float> weights);

}  // namespace kvasir::kernels

#endif  // KVASIR_KERNELS_PACKED_MATRIX_H_
