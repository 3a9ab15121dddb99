#include "kernels/dequantize.h"

#include <cstring>
#include <stdexcept>

#include "kernels/half.h"
#include "kernels/unaligned.h"

namespace kvasir::kernels {
namespace {

float read_f16(const std::byte* p) { return f16_to_f32(read_u16(p)); }

int u8(std::byte b) { return std::to_integer<int>(b); }

// 16 bytes hold 32 values: the low nibbles are values 0..15, the high ones 16..31; `high` has a fifth bit for
// each.
void unpack_nibbles(const std::byte* nibbles, std::uint32_t high, int zero_point, std::int8_t* out) {
  for (int i = 0; i < 16; ++i) {
    const int low_value = (u8(nibbles[i]) & 0xf) | (((high >> i) & 1) << 4);
    const int high_value = (u8(nibbles[i]) >> 4) | (((high >> (i + 16)) & 1) << 4);
    out[i] = static_cast<std::int8_t>(low_value - zero_point);
    out[i + 16] = static_cast<std::int8_t>(high_value - zero_point);
  }
}

// Q4_K and Q5_K: eight 6-bit scales and eight 6-bit mins in 12 bytes. Bytes 0..3 and 4..7 hold the first four
// of each in their low six bits; bytes 8..11 the low nibbles of the last four, whose top two bits are in
// bytes 0..7.
void unpack_scales_and_mins(const std::byte* packed, QuantBlock& out) {
  for (int i = 0; i < 8; ++i) {
    int scale;
    int min;
    if (i < 4) {
      scale = u8(packed[i]) & 63;
      min = u8(packed[i + 4]) & 63;
    } else {
      scale = (u8(packed[i + 4]) & 0xf) | ((u8(packed[i - 4]) >> 6) << 4);
      min = (u8(packed[i + 4]) >> 4) | ((u8(packed[i]) >> 6) << 4);
    }
    out.sub_scales[2 * i] = out.sub_scales[2 * i + 1] = static_cast<std::int8_t>(scale);
    out.sub_mins[i] = static_cast<std::uint8_t>(min);
  }
}

// 256 values in 128 bytes: bytes 32j..32j+31 hold block 2j in their low nibbles and block 2j+1 in their high
// ones. high (may be null): bit b of byte i is the fifth bit of value i of block b.
void unpack_k_nibbles(const std::byte* nibbles, const std::byte* high, std::int8_t* out) {
  for (int block = 0; block < 8; ++block) {
    const std::byte* bytes = nibbles + 32 * (block / 2);
    for (int i = 0; i < 32; ++i) {
      int value = block % 2 == 0 ? u8(bytes[i]) & 0xf : u8(bytes[i]) >> 4;
      if (high != nullptr) value |= ((u8(high[i]) >> block) & 1) << 4;
      out[32 * block + i] = static_cast<std::int8_t>(value);
    }
  }
}

void unpack_q6_k(const std::byte* block, QuantBlock& out) {
  const std::byte* low = block;         // 128 bytes: low four bits
  const std::byte* high = block + 128;  // 64 bytes: high two bits; then come 16 int8 scales and d
  for (int half = 0; half < 2; ++half) {
    for (int quarter = 0; quarter < 4; ++quarter) {
      for (int i = 0; i < 32; ++i) {
        const int low_byte = u8(low[64 * half + 32 * (quarter % 2) + i]);
        const int low_bits = quarter < 2 ? low_byte & 0xf : low_byte >> 4;
        const int high_bits = (u8(high[32 * half + i]) >> (2 * quarter)) & 3;
        out.quants[128 * half + 32 * quarter + i] =
            static_cast<std::int8_t>((low_bits | (high_bits << 4)) - 32);
      }
    }
  }
}

}  // namespace

void unpack_scales(TensorType type, const std::byte* block, QuantBlock& out) {
  if (type == TensorType::kQ6_K) {
    std::memcpy(out.sub_scales, block + 192, 16);
    out.d = read_f16(block + 208);
    out.dmin = 0.0F;
    return;
  }
  out.d = read_f16(block);
  out.dmin = read_f16(block + 2);
  unpack_scales_and_mins(block + 4, out);
}

// The exact product comes first; at most the last operation rounds.
float block_value(TensorType type, const QuantBlock& block, std::size_t i) {
  const float quant = static_cast<float>(block.quants[i]);
  const std::size_t sub_block = i / 16, min_block = i / 32;
  switch (type) {
    case TensorType::kQ4_1:
    case TensorType::kQ5_1:
      return block.d * quant + block.dmin;
    case TensorType::kQ4_K:
    case TensorType::kQ5_K:
      return block.d * static_cast<float>(block.sub_scales[sub_block]) * quant -
             block.dmin * static_cast<float>(block.sub_mins[min_block]);
    case TensorType::kQ6_K:
      return block.d * static_cast<float>(block.sub_scales[sub_block]) * quant;
    default:
      return block.d * quant;
  }
}

void unpack_block(TensorType type, const std::byte* block, QuantBlock& out) {
  out.d = 0.0F;
  out.dmin = 0.0F;
  switch (type) {
    case TensorType::kQ8_0:
      out.d = read_f16(block);
      std::memcpy(out.quants, block + 2, 32);
      return;
    case TensorType::kQ4_0:
      out.d = read_f16(block);
      unpack_nibbles(block + 2, 0, 8, out.quants);
      return;
    case TensorType::kQ4_1:
      out.d = read_f16(block);
      out.dmin = read_f16(block + 2);
      unpack_nibbles(block + 4, 0, 0, out.quants);
      return;
    case TensorType::kQ5_0:
      out.d = read_f16(block);
      unpack_nibbles(block + 6, read_u32(block + 2), 16, out.quants);
      return;
    case TensorType::kQ5_1:
      out.d = read_f16(block);
      out.dmin = read_f16(block + 2);
      unpack_nibbles(block + 8, read_u32(block + 4), 0, out.quants);
      return;
    case TensorType::kQ4_K:
      unpack_scales(type, block, out);
      unpack_k_nibbles(block + 16, nullptr, out.quants);
      return;
    case TensorType::kQ5_K:
      unpack_scales(type, block, out);
      unpack_k_nibbles(block + 48, block + 16, out.quants);
      return;
    case TensorType::kQ6_K:
      unpack_scales(type, block, out);
      unpack_q6_k(block, out);
      return;
    case TensorType::kF32:
    case TensorType::kF16:
    case TensorType::kBF16:
      break;
  }
  throw std::logic_error("unpack_block: not a block-quantized type");
}

void dequantize(TensorType type, const std::byte* data, std::span<float> out) {
  if (type == TensorType::kF32) {
    std::memcpy(out.data(), data, out.size_bytes());
    return;
  }
  if (type == TensorType::kF16 || type == TensorType::kBF16) {
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::uint16_t bits = read_u16(data + 2 * i);
      out[i] = type == TensorType::kF16 ? f16_to_f32(bits) : bf16_to_f32(bits);
    }
    return;
  }
  const TensorTypeInfo& info = tensor_type_info(type);
  QuantBlock block;
  for (std::size_t start = 0; start < out.size(); start += info.block_values, data += info.block_bytes) {
    unpack_block(type, data, block);
    for (std::size_t i = 0; i < info.block_values; ++i) {
      out[start + i] = block_value(type, block, i);
    }
  }
}

}  // namespace kvasir::kernels
