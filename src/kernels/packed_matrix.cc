#include "kernels/packed_matrix.h"

#include <cstring>

namespace kvasir::kernels {
namespace {

constexpr std::size_t kLine = AlignedBuffer<std::byte>::kAlignment;
constexpr std::size_t kGroupBytes = kPanel * kDotGroup;

template <class T>
void put(std::byte* base, std::size_t index, T value) {
  std::memcpy(base + index * sizeof value, &value, sizeof value);
}

// ---- One lane of a block: 32 stored inputs of one output into its codes, which begin at the lane's
// four bytes of the block's first group.

// Bits 0, 4, 8 .. 28 to bits 0 .. 7.
std::uint32_t every_fourth_bit(std::uint32_t bits) {
  bits &= 0x11111111;
  bits = (bits | bits >> 3) & 0x03030303;
  bits = (bits | bits >> 6) & 0x000f000f;
  return (bits | bits >> 12) & 0xff;
}

// bit i of `bits` is the fifth bit of input i.
std::uint32_t pack_fifth_bits(std::uint32_t bits) {
  std::uint32_t packed = 0;
  for (int i = 0; i < 4; ++i) packed |= every_fourth_bit(bits >> i) << (8 * i);
  return packed;
}

// Stored types of 32: 16 bytes of nibbles lie as ours do.
void pack_nibbles(const std::byte* nibbles, std::byte* codes) {
  for (std::size_t g = 0; g < 4; ++g) std::memcpy(codes + g * kGroupBytes, nibbles + 4 * g, 4);
}

// One of the two blocks whose nibbles share 32 bytes in Q4_K, Q5_K and Q6_K.
void pack_k_nibbles(const std::byte* bytes, bool high_nibbles, std::byte* codes) {
  for (std::size_t g = 0; g < 4; ++g) {
    const std::uint32_t first = read_u32(bytes + 4 * g), second = read_u32(bytes + 16 + 4 * g);
    put(codes + g * kGroupBytes, 0,
        high_nibbles ? (first >> 4 & 0x0f0f0f0f) | (second & 0xf0f0f0f0)
                     : (first & 0x0f0f0f0f) | (second & 0x0f0f0f0f) << 4);
  }
}

std::uint32_t pack_k_fifth_bits(const std::byte* high, int block) {
  std::uint32_t packed = 0;
  for (std::size_t g = 0; g < 8; ++g) packed |= (read_u32(high + 4 * g) >> block & 0x01010101) << g;
  return packed;
}

// high: 32 bytes whose bits `shift` and `shift` + 1 belong to the inputs of this block.
void pack_top_bits(const std::byte* high, int shift, std::byte* out) {
  for (std::size_t half = 0; half < 2; ++half) {
    std::uint32_t packed = 0;
    for (std::size_t g = 0; g < 4; ++g) {
      packed |= (read_u32(high + 16 * half + 4 * g) >> shift & 0x03030303) << (2 * g);
    }
    put(out + half * kGroupBytes, 0, packed);
  }
}

// One stored block of 32 inputs.
void pack_block(TensorType type, const std::byte* block, std::byte* segment, const SegmentLayout& at,
                std::size_t b, std::size_t lane) {
  const bool has_min = at.mins != 0;
  put(segment + at.scales, b * kPanel + lane, read_u16(block));
  if (has_min) put(segment + at.mins, b * kPanel + lane, read_u16(block + 2));
  block += has_min ? 4 : 2;
  std::byte* codes = segment + at.codes + b * at.block_bytes + kDotGroup * lane;
  if (type == TensorType::kQ8_0) {
    for (std::size_t g = 0; g < kGroups; ++g)
      put(codes + g * kGroupBytes, 0, read_u32(block + 4 * g) ^ 0x80808080U);
    return;
  }
  if (type == TensorType::kQ5_0 || type == TensorType::kQ5_1) {
    put(codes + 4 * kGroupBytes, 0, pack_fifth_bits(read_u32(block)));
    block += 4;
  }
  pack_nibbles(block, codes);
}

// One stored super-block of 256 inputs: a whole segment.
void pack_super_block(TensorType type, const std::byte* block, std::byte* segment, const SegmentLayout& at,
                      std::size_t lane) {
  QuantBlock unpacked;
  const bool q6 = type == TensorType::kQ6_K;
  unpack_scales(type, block, unpacked);
  put(segment + at.scales, lane, read_u16(block + (q6 ? 208 : 0)));
  if (!q6) put(segment + at.mins, lane, read_u16(block + 2));
  for (std::size_t s = 0; s < (q6 ? 16U : 8U); ++s) {
    put(segment + at.sub_scales, s * kPanel + lane, unpacked.sub_scales[q6 ? s : 2 * s]);
  }
  for (std::size_t b = 0; b < 8; ++b) {
    std::byte* codes = segment + at.codes + b * at.block_bytes + kDotGroup * lane;
    if (q6) {
      const std::size_t half = b / 4, quarter = b % 4;
      pack_k_nibbles(block + 64 * half + 32 * (quarter % 2), quarter >= 2, codes);
      pack_top_bits(block + 128 + 32 * half, static_cast<int>(2 * quarter), codes + 4 * kGroupBytes);
      continue;
    }
    put(segment + at.sub_mins, b * kPanel + lane, unpacked.sub_mins[b]);
    const bool q5 = type == TensorType::kQ5_K;
    pack_k_nibbles(block + (q5 ? 48 : 16) + 32 * (b / 2), b % 2 == 1, codes);
    if (q5) put(codes + 4 * kGroupBytes, 0, pack_k_fifth_bits(block + 16, static_cast<int>(b)));
  }
}

// ---- One lane of a segment, from a stored row at its first input there

void pack_float_lane(TensorType type, TensorType stored, const std::byte* row, std::int64_t inputs,
                     std::byte* segment, std::size_t lane) {
  const auto count = static_cast<std::size_t>(inputs);
  if (type == TensorType::kF32 && stored != TensorType::kF32) {
    float values[kSegment];
    dequantize(stored, row, {values, count});
    for (std::size_t i = 0; i < count; ++i) put(segment, i * kPanel + lane, values[i]);
  } else if (type == TensorType::kF32) {
    for (std::size_t i = 0; i < count; ++i) put(segment, i * kPanel + lane, read_u32(row + 4 * i));
  } else if (type == TensorType::kF16) {
    for (std::size_t i = 0; i < count; ++i) put(segment, i * kPanel + lane, read_u16(row + 2 * i));
  } else {
    for (std::size_t i = 0; i < count; i += 2) {
      const std::uint32_t even = bf16_without_tiny(read_u16(row + 2 * i));
      const std::uint32_t odd = i + 1 < count ? bf16_without_tiny(read_u16(row + 2 * i + 2)) : 0U;
      put(segment, i / 2 * kPanel + lane, even << 16 | odd);
    }
  }
}

}  // namespace

InputKind input_kind(TensorType type) {
  switch (type) {
    case TensorType::kF32:
    case TensorType::kF16:
      return InputKind::kFloat;
    case TensorType::kBF16:
      return InputKind::kBF16;
    default:
      return InputKind::kInt8;
  }
}

SegmentLayout segment_layout(TensorType type, std::int64_t inputs) {
  SegmentLayout layout;
  const auto part = [&](std::size_t bytes) {
    const std::size_t at = layout.bytes;
    layout.bytes += (bytes + kLine - 1) / kLine * kLine;
    return at;
  };
  const auto count = static_cast<std::size_t>(inputs);
  if (input_kind(type) != InputKind::kInt8) {
    const std::size_t columns = type == TensorType::kBF16 ? (count + 1) / 2 : count;
    part(columns * kPanel * (type == TensorType::kF16 ? 2 : 4));
    return layout;
  }
  const QuantFormat format = quant_format(type);
  const std::size_t blocks = count / kQuantBlock;
  if (format.sub_scales > 0) {
    layout.scales = part(2 * kPanel * sizeof(std::uint16_t));
    layout.mins = layout.scales + kPanel * sizeof(std::uint16_t);
    layout.sub_scales = part(static_cast<std::size_t>(format.sub_scales) * kPanel);
    if (format.mins) layout.sub_mins = part(8 * kPanel);
  } else {
    layout.scales = part(blocks * kPanel * sizeof(std::uint16_t));
    if (format.mins) layout.mins = part(blocks * kPanel * sizeof(std::uint16_t));
  }
  layout.block_bytes = static_cast<std::size_t>(format.bits) * kGroupBytes;
  layout.codes = part(blocks * layout.block_bytes);
  return layout;
}

PackedMatrix make_packed_matrix(TensorType type, std::int64_t n, std::int64_t k, Activations activations,
                                MemoryArena& memory) {
  PackedMatrix matrix;
  const bool as_floats = activations == Activations::kF32 && type != TensorType::kF16;
  matrix.type = as_floats ? TensorType::kF32 : type;
  matrix.n = n;
  matrix.k = k;
  matrix.full_segment = segment_layout(matrix.type, kSegment);
  matrix.last_segment = segment_layout(matrix.type, matrix.segment_inputs(matrix.segments() - 1));
  matrix.panel_bytes =
      static_cast<std::size_t>(matrix.segments() - 1) * matrix.full_segment.bytes + matrix.last_segment.bytes;
  matrix.data = memory.take(matrix.nbytes());
  return matrix;
}

void pack_panel(PackedMatrix& matrix, TensorType type, const std::byte* rows, std::int64_t panel) {
  const TensorTypeInfo& info = tensor_type_info(type);
  const auto k = static_cast<std::size_t>(matrix.k);
  const std::size_t row_bytes = k / info.block_values * info.block_bytes;
  const auto lanes = static_cast<std::size_t>(std::min(kPanel, matrix.n - panel * kPanel));
  std::byte* out = matrix.data.get() + static_cast<std::size_t>(panel) * matrix.panel_bytes;
  std::memset(out, 0, matrix.panel_bytes);  // for lanes past the last output and gaps between the parts
  for (std::int64_t segment = 0; segment < matrix.segments(); ++segment, out += matrix.full_segment.bytes) {
    const SegmentLayout& at = matrix.layout(segment);
    const std::int64_t inputs = matrix.segment_inputs(segment);
    const std::size_t skipped =
        static_cast<std::size_t>(segment * kSegment) / info.block_values * info.block_bytes;
    for (std::size_t lane = 0; lane < lanes; ++lane) {
      const std::byte* row = rows + (static_cast<std::size_t>(panel) * kPanel + lane) * row_bytes + skipped;
      if (input_kind(matrix.type) != InputKind::kInt8) {
        pack_float_lane(matrix.type, type, row, inputs, out, lane);
      } else if (info.block_values == kSegment) {
        pack_super_block(type, row, out, at, lane);
      } else {
        for (std::size_t b = 0; b < static_cast<std::size_t>(inputs / kQuantBlock); ++b) {
          pack_block(type, row + b * info.block_bytes, out, at, b, lane);
        }
      }
    }
  }
}

void unpack_packed_block(const PackedMatrix& matrix, std::int64_t output, std::int64_t b, QuantBlock& block) {
  const QuantFormat format = quant_format(matrix.type);
  const auto lane = static_cast<std::size_t>(output % kPanel);
  const auto block_values = static_cast<std::int64_t>(tensor_type_info(matrix.type).block_values);
  const std::int64_t first_input = b * block_values;
  const std::byte* segment = matrix.at(output / kPanel, first_input / kSegment);
  const SegmentLayout& at = matrix.layout(first_input / kSegment);
  const auto first_block = static_cast<std::size_t>(first_input % kSegment / kQuantBlock);
  const auto half = [&](std::size_t part) {
    return f16_to_f32(read_u16(segment + part + 2 * (first_block * kPanel + lane)));
  };
  block.d = half(at.scales);
  block.dmin = format.mins ? half(at.mins) : 0.0F;
  const std::size_t per_scale = format.sub_scales == 8 ? 2 : 1;
  for (std::size_t s = 0; s < 16 && format.sub_scales > 0; ++s) {
    block.sub_scales[s] = static_cast<std::int8_t>(segment[at.sub_scales + s / per_scale * kPanel + lane]);
  }
  for (std::size_t s = 0; s < 8 && format.sub_scales > 0 && format.mins; ++s) {
    block.sub_mins[s] = static_cast<std::uint8_t>(segment[at.sub_mins + s * kPanel + lane]);
  }
  for (std::size_t i = 0; i < static_cast<std::size_t>(block_values); i += kDotGroup) {
    const std::size_t b32 = first_block + i / kQuantBlock, g = i % kQuantBlock / kDotGroup;
    const auto four = [&](std::size_t group) {
      return read_u32(segment + at.codes + b32 * at.block_bytes + group * kGroupBytes + lane * kDotGroup);
    };
    std::uint32_t codes;
    if (format.bits == 8) {
      codes = four(g);
    } else {
      codes = four(g % 4) >> (g / 4 * 4) & 0x0f0f0f0f;
      if (format.bits == 5) codes |= (four(4) >> g & 0x01010101) << 4;
      if (format.bits == 6) codes |= (four(4 + g / 4) >> (g % 4 * 2) & 0x03030303) << 4;
    }
    for (std::size_t j = 0; j < kDotGroup; ++j) {
      block.quants[i + j] =
          static_cast<std::int8_t>(static_cast<int>(codes >> (8 * j) & 0xff) - format.zero_point);
    }
  }
}

void dequantize_output(const PackedMatrix& matrix, std::int64_t output, std::span<float> weights) {
  if (input_kind(matrix.type) == InputKind::kInt8) {
    const std::size_t block_values = tensor_type_info(matrix.type).block_values;
    QuantBlock block;
    for (std::size_t b = 0; b < weights.size() / block_values; ++b) {
      unpack_packed_block(matrix, output, static_cast<std::int64_t>(b), block);
      for (std::size_t i = 0; i < block_values; ++i) {
        weights[b * block_values + i] = block_value(matrix.type, block, i);
      }
    }
    return;
  }
  for (std::int64_t s = 0; s < matrix.segments(); ++s) {
    const std::byte* segment = matrix.at(output / kPanel, s);
    float* out = weights.data() + s * kSegment;
    for (std::int64_t i = 0; i < matrix.segment_inputs(s); ++i) {
      out[i] = packed_float(matrix.type, segment, i, output % kPanel);
    }
  }
}

}  // namespace kvasir::kernels
