#include "kernels/packed_matrix.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <vector>

#include "kernels/dequantize.h"

namespace kvasir::kernels {
namespace {

WeightLayout layout_of(TensorType type, Activations activations) {
  if (activations == Activations::kF32) return WeightLayout::kF32;
  switch (type) {
    case TensorType::kF32:
    case TensorType::kF16:
      return WeightLayout::kF32;
    case TensorType::kBF16:
      return WeightLayout::kBF16;
    case TensorType::kQ8_0:
    case TensorType::kQ4_0:
    case TensorType::kQ5_0:
      return WeightLayout::kInt8;
    case TensorType::kQ4_1:
    case TensorType::kQ5_1:
      return WeightLayout::kInt8Min;
    case TensorType::kQ4_K:
    case TensorType::kQ5_K:
    case TensorType::kQ6_K:
      return WeightLayout::kSuperBlock;
  }
  throw std::logic_error("layout_of: unknown tensor type");
}

void pack_float_row(PackedMatrix& matrix, TensorType type, const std::byte* row, std::int64_t panel,
                    std::int64_t lane) {
  std::vector<float> values(static_cast<std::size_t>(matrix.k));
  dequantize(type, row, values);
  float* out = matrix.floats.data() + panel * matrix.k * kPanel + lane;
  for (std::int64_t k = 0; k < matrix.k; ++k) {
    float value = values[static_cast<std::size_t>(k)];
    // See round_bf16 in kernels.h: no product may become subnormal.
    if (matrix.layout == WeightLayout::kBF16 && std::fabs(value) < 0x1p-48F) value = 0.0F;
    out[k * kPanel] = value;
  }
}

void pack_quantized_row(PackedMatrix& matrix, TensorType type, const std::byte* row, std::int64_t panel,
                        std::int64_t lane) {
  const TensorTypeInfo& info = tensor_type_info(type);
  const auto block_values = static_cast<std::int64_t>(info.block_values);
  const std::int64_t blocks = matrix.k / block_values;
  QuantBlock block;
  for (std::int64_t b = 0; b < blocks; ++b, row += info.block_bytes) {
    unpack_block(type, row, block);
    const std::int64_t k0 = b * block_values;
    std::int8_t* quants = matrix.quants.data() + (panel * matrix.k + k0) * kPanel;
    for (std::int64_t i = 0; i < block_values; ++i) {
      quants[(i / kDotGroup * kPanel + lane) * kDotGroup + i % kDotGroup] = block.quants[i];
    }
    const std::int64_t scale_index = (panel * blocks + b) * kPanel + lane;
    matrix.scales[static_cast<std::size_t>(scale_index)] = block.d;
    if (matrix.mins.size() > 0) matrix.mins[static_cast<std::size_t>(scale_index)] = block.dmin;
    if (matrix.layout != WeightLayout::kSuperBlock) continue;
    std::int16_t* sub_scales = matrix.sub_scales.data() + (panel * matrix.k + k0) / kSubBlock * kPanel + lane;
    for (std::int64_t s = 0; s < block_values / kSubBlock; ++s) {
      sub_scales[s * kPanel] = static_cast<std::int16_t>(int{block.sub_scales[s]});
    }
    if (matrix.sub_mins.size() == 0) continue;
    std::int16_t* sub_mins = matrix.sub_mins.data() + (panel * matrix.k + k0) / kQuantBlock * kPanel + lane;
    for (std::int64_t s = 0; s < block_values / kQuantBlock; ++s) sub_mins[s * kPanel] = block.sub_mins[s];
  }
}

}  // namespace

std::size_t PackedMatrix::nbytes() const {
  return floats.size() * sizeof(float) + quants.size() + (scales.size() + mins.size()) * sizeof(float) +
         (sub_scales.size() + sub_mins.size()) * sizeof(std::int16_t);
}

PackedMatrix make_packed_matrix(TensorType type, std::int64_t n, std::int64_t k, Activations activations) {
  PackedMatrix matrix;
  matrix.layout = layout_of(type, activations);
  matrix.n = n;
  matrix.k = k;
  const auto lanes = static_cast<std::size_t>(matrix.panels() * kPanel);
  const auto inputs = static_cast<std::size_t>(k);
  switch (matrix.layout) {
    case WeightLayout::kF32:
    case WeightLayout::kBF16:
      matrix.floats = AlignedBuffer<float>(lanes * inputs);
      break;
    case WeightLayout::kInt8Min:
      matrix.mins = AlignedBuffer<float>(lanes * inputs / kQuantBlock);
      [[fallthrough]];
    case WeightLayout::kInt8:
      matrix.quants = AlignedBuffer<std::int8_t>(lanes * inputs);
      matrix.scales = AlignedBuffer<float>(lanes * inputs / kQuantBlock);
      break;
    case WeightLayout::kSuperBlock:
      matrix.quants = AlignedBuffer<std::int8_t>(lanes * inputs);
      matrix.scales = AlignedBuffer<float>(lanes * inputs / kSegment);
      matrix.sub_scales = AlignedBuffer<std::int16_t>(lanes * inputs / kSubBlock);
      if (type != TensorType::kQ6_K) {
        matrix.mins = AlignedBuffer<float>(lanes * inputs / kSegment);
        matrix.sub_mins = AlignedBuffer<std::int16_t>(lanes * inputs / kQuantBlock);
      }
      break;
  }
  return matrix;
}

void pack_panel(PackedMatrix& matrix, TensorType type, const std::byte* rows, std::int64_t panel) {
  const TensorTypeInfo& info = tensor_type_info(type);
  const std::size_t row_bytes = static_cast<std::size_t>(matrix.k) / info.block_values * info.block_bytes;
  const bool floats = matrix.layout == WeightLayout::kF32 || matrix.layout == WeightLayout::kBF16;
  const std::int64_t lanes =
      std::min(kPanel, matrix.n - panel * kPanel);  // lanes past the last output stay zero
  for (std::int64_t lane = 0; lane < lanes; ++lane) {
    const std::byte* row = rows + static_cast<std::size_t>(panel * kPanel + lane) * row_bytes;
    if (floats) {
      pack_float_row(matrix, type, row, panel, lane);
    } else {
      pack_quantized_row(matrix, type, row, panel, lane);
    }
  }
}

}  // namespace kvasir::kernels
