#include "formats/safetensors_layout.h"

#include <array>
#include <utility>

namespace kvasir {

std::optional<std::uint64_t> safetensors_dtype_bits(std::string_view dtype) {
  // The dtypes of safetensors 0.8.
  static constexpr std::array<std::pair<std::string_view, std::uint64_t>, 22> kBits = {{
      {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6},     {"BOOL", 8},        {"U8", 8},   {"I8", 8},
      {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8},     {"I16", 16},        {"U16", 16}, {"F16", 16},
      {"BF16", 16},   {"I32", 32},    {"U32", 32},        {"F32", 32},        {"C64", 64}, {"F64", 64},
      {"I64", 64},    {"U64", 64},    {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8},
  }};
  for (const auto& [name, bits] : kBits) {
    if (name == dtype) return bits;
  }
  return std::nullopt;
}

std::optional<std::uint64_t> safetensors_bytes(std::string_view dtype,
                                               const std::vector<std::uint64_t>& shape) {
  std::optional<std::uint64_t> bits = safetensors_dtype_bits(dtype);
  if (!bits) return std::nullopt;
  for (const std::uint64_t size : shape) {
    if (__builtin_mul_overflow(*bits, size, &*bits)) return std::nullopt;
  }
  if (*bits % 8 != 0) return std::nullopt;
  return *bits / 8;
}

}  // namespace kvasir
