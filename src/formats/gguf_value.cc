#include "formats/gguf_value.h"

#include <array>
#include <limits>

namespace kvasir {

const GgufValueTypeInfo* gguf_value_type_info(std::uint32_t id) {
  // Indexed by GgufValueType. A string is its length (8 bytes) and its bytes; an array is its element type
  // (4), its count (8) and its elements.
  static constexpr std::array<GgufValueTypeInfo, 13> kTypes = {{
      {"uint8", 1, 1},
      {"int8", 1, 1},
      {"uint16", 2, 2},
      {"int16", 2, 2},
      {"uint32", 4, 4},
      {"int32", 4, 4},
      {"float32", 4, 4},
      {"bool", 1, 1},
      {"string", 0, 8},
      {"array", 0, 12},
      {"uint64", 8, 8},
      {"int64", 8, 8},
      {"float64", 8, 8},
  }};
  return id < kTypes.size() ? &kTypes[id] : nullptr;
}

std::optional<std::int64_t> gguf_int_at(GgufValueType type, std::span<const std::byte> data,
                                        std::uint64_t index) {
  switch (type) {
    case GgufValueType::kUint8:
      return load_unaligned<std::uint8_t>(data, index);
    case GgufValueType::kInt8:
      return load_unaligned<std::int8_t>(data, index);
    case GgufValueType::kUint16:
      return load_unaligned<std::uint16_t>(data, 2 * index);
    case GgufValueType::kInt16:
      return load_unaligned<std::int16_t>(data, 2 * index);
    case GgufValueType::kUint32:
      return load_unaligned<std::uint32_t>(data, 4 * index);
    case GgufValueType::kInt32:
      return load_unaligned<std::int32_t>(data, 4 * index);
    case GgufValueType::kInt64:
      return load_unaligned<std::int64_t>(data, 8 * index);
    case GgufValueType::kUint64: {
      const auto value = load_unaligned<std::uint64_t>(data, 8 * index);
      if (value > std::uint64_t{std::numeric_limits<std::int64_t>::max()}) return std::nullopt;
      return static_cast<std::int64_t>(value);
    }
    default:
      return std::nullopt;
  }
}

std::optional<double> gguf_float_at(GgufValueType type, std::span<const std::byte> data,
                                    std::uint64_t index) {
  if (type == GgufValueType::kFloat32) return double{load_unaligned<float>(data, 4 * index)};
  if (type == GgufValueType::kFloat64) return load_unaligned<double>(data, 8 * index);
  return std::nullopt;
}

std::string_view gguf_string_at(std::span<const std::byte> data, std::size_t offset) {
  const auto length = load_unaligned<std::uint64_t>(data, offset);
  const std::span<const std::byte> text = data.subspan(offset + sizeof length, length);
  return {reinterpret_cast<const char*>(text.data()), text.size()};
}

std::string_view gguf_tensor_type_name(std::uint32_t id) {
  // Ids of enum ggml_type. 4, 5, 31 to 33 and 36 to 38 are formats that ggml removed.
  static constexpr std::array<std::string_view, 42> kNames = {
      "F32",   "F16",        "Q4_0",       "Q4_1",       "Q4_2",     "Q4_3",     "Q5_0",
      "Q5_1",  "Q8_0",       "Q8_1",       "Q2_K",       "Q3_K",     "Q4_K",     "Q5_K",
      "Q6_K",  "Q8_K",       "IQ2_XXS",    "IQ2_XS",     "IQ3_XXS",  "IQ1_S",    "IQ4_NL",
      "IQ3_S", "IQ2_S",      "IQ4_XS",     "I8",         "I16",      "I32",      "I64",
      "F64",   "IQ1_M",      "BF16",       "Q4_0_4_4",   "Q4_0_4_8", "Q4_0_8_8", "TQ1_0",
      "TQ2_0", "IQ4_NL_4_4", "IQ4_NL_4_8", "IQ4_NL_8_8", "MXFP4",    "NVFP4",    "Q1_0"};
  return id < kNames.size() ? kNames[id] : std::string_view();
}

}  // namespace kvasir
