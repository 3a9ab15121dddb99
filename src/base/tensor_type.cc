#include "base/tensor_type.h"

#include <array>
#include <stdexcept>

namespace kvasir {
namespace {

constexpr std::array<TensorTypeInfo, 11> kTypes = {{
    {TensorType::kF32, "F32", 1, 4},
    {TensorType::kF16, "F16", 1, 2},
    {TensorType::kQ4_0, "Q4_0", 32, 18},  // f16 d, 16 bytes of nibbles
    {TensorType::kQ4_1, "Q4_1", 32, 20},  // f16 d, f16 m, 16 bytes of nibbles
    {TensorType::kQ5_0, "Q5_0", 32, 22},  // f16 d, 4 bytes of high bits, 16 bytes of nibbles
    {TensorType::kQ5_1, "Q5_1", 32, 24},  // f16 d, f16 m, 4 bytes of high bits, 16 bytes of nibbles
    {TensorType::kQ8_0, "Q8_0", 32, 34},  // f16 d, 32 int8
    {TensorType::kQ4_K, "Q4_K", 256,
     144},  // f16 d, f16 dmin, 12 bytes of 6-bit scales and mins, 128 of nibbles
    {TensorType::kQ5_K, "Q5_K", 256, 176},  // as Q4_K, with 32 bytes of high bits
    {TensorType::kQ6_K, "Q6_K", 256, 210},  // 128 bytes low nibbles, 64 high pairs, 16 int8 scales, f16 d
    {TensorType::kBF16, "BF16", 1, 2},
}};

}  // namespace

const TensorTypeInfo& tensor_type_info(TensorType type) {
  for (const TensorTypeInfo& info : kTypes) {
    if (info.type == type) return info;
  }
  throw std::out_of_range("not a tensor type");
}

std::optional<TensorType> tensor_type_from_gguf(std::uint32_t id) {
  for (const TensorTypeInfo& info : kTypes) {
    if (static_cast<std::uint32_t>(info.type) == id) return info.type;
  }
  return std::nullopt;
}

}  // namespace kvasir
