// The number formats in which weights are stored, with the ids that GGUF gives them.
#ifndef KVASIR_BASE_TENSOR_TYPE_H_
#define KVASIR_BASE_TENSOR_TYPE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace kvasir {

enum class TensorType : std::uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kBF16 = 30,
};

struct TensorTypeInfo {
  TensorType type;
  std::string_view name;     // as GGUF tools print it, e.g. "Q4_K"
  std::size_t block_values;  // numbers in one block (1 for plain floats)
  std::size_t block_bytes;   // bytes of one block
};

// Throws std::out_of_range for a value that is no TensorType.
const TensorTypeInfo& tensor_type_info(TensorType type);

// The type with this GGUF id, if it is one that we read.
std::optional<TensorType> tensor_type_from_gguf(std::uint32_t id);

}  // namespace kvasir

#endif  // KVASIR_BASE_TENSOR_TYPE_H_
