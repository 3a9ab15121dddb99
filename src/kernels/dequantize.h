// Weights of every stored format as exact float32 values.
//
// Source of the block layouts: ggml's block_q* structures, as the GGUF specification refers to them.
#ifndef KVASIR_KERNELS_DEQUANTIZE_H_
#define KVASIR_KERNELS_DEQUANTIZE_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "base/tensor_type.h"

namespace kvasir::kernels {

// One block of a block-quantized type as integers: value i = scale[i / group] * quants[i] + offset[i /
// group], where scale and offset come from 16-bit floats and small integers (see the fields).
struct QuantBlock {
  std::int8_t quants[256];     // the block's values; block_values of them are set
  float d;                     // float scale of the whole block
  float dmin;                  // Q4_1, Q5_1: the offset m; Q4_K, Q5_K: float scale of the mins; else 0
  std::int8_t sub_scales[16];  // K-quants: integer scale of each 16 values; else unset
  std::uint8_t
      sub_mins[8];  // Q4_K, Q5_K: integer min of each 32 values (value = d*sc*q - dmin*min); else unset
};

// `block` points at one stored block of `type`, which must be block-quantized.
void unpack_block(TensorType type, const std::byte* block, QuantBlock& out);

// Only d, dmin, sub_scales and sub_mins of a K-quant's block.
void unpack_scales(TensorType type, const std::byte* block, QuantBlock& out);

// Value i of a block of `type`.
float block_value(TensorType type, const QuantBlock& block, std::size_t i);

// Values of consecutive blocks: out.size() is a multiple of the type's block size.
void dequantize(TensorType type, const std::byte* data, std::span<float> out);

}  // namespace kvasir::kernels

#endif  // KVASIR_KERNELS_DEQUANTIZE_H_
