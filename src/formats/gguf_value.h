// The values of GGUF's metadata: their types and encodings.
#ifndef KVASIR_FORMATS_GGUF_VALUE_H_
#define KVASIR_FORMATS_GGUF_VALUE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <string_view>

#include "formats/gguf.h"

namespace kvasir {

struct GgufValueTypeInfo {
  std::string_view name;
  std::size_t bytes;      // of one value; 0 where that differs from value to value
  std::size_t min_bytes;  // of one value
};

// nullptr for a number that is no GgufValueType.
const GgufValueTypeInfo* gguf_value_type_info(std::uint32_t id);

// Values lie unaligned in the file.
template <class T>
T load_unaligned(std::span<const std::byte> data, std::size_t offset = 0) {
  T value;
  std::memcpy(&value, data.data() + offset, sizeof value);
  return value;
}

// Element `index` of `data`, if the type is an integer (not bool) and an int64 can hold the value.
std::optional<std::int64_t> gguf_int_at(GgufValueType type, std::span<const std::byte> data,
                                        std::uint64_t index);

// Element `index` of `data`, if the type is a float32 or float64.
std::optional<double> gguf_float_at(GgufValueType type, std::span<const std::byte> data, std::uint64_t index);

// The string that begins at `offset` of `data`.
std::string_view gguf_string_at(std::span<const std::byte> data, std::size_t offset);

// The name of a tensor type that GGUF defines, also of those that Kvasir does not read; empty if unknown.
std::string_view gguf_tensor_type_name(std::uint32_t id);

}  // namespace kvasir

#endif  // KVASIR_FORMATS_GGUF_VALUE_H_
