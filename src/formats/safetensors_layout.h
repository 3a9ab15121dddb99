// Sizes of tensors in safetensors files.
#ifndef KVASIR_FORMATS_SAFETENSORS_LAYOUT_H_
#define KVASIR_FORMATS_SAFETENSORS_LAYOUT_H_

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

namespace kvasir {

// Bits of one number, if safetensors knows the dtype.
std::optional<std::uint64_t> safetensors_dtype_bits(std::string_view dtype);

// Bytes of a tensor. Nothing if the dtype is unknown, if the bits fill no whole number of bytes or if 64 bits
// cannot count them.
std::optional<std::uint64_t> safetensors_bytes(std::string_view dtype,
                                               const std::vector<std::uint64_t>& shape);

}  // namespace kvasir

#endif  // KVASIR_FORMATS_SAFETENSORS_LAYOUT_H_
