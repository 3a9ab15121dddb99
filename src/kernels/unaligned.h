// Numbers out of stored bytes, which need not be aligned.
#ifndef KVASIR_KERNELS_UNALIGNED_H_
#define KVASIR_KERNELS_UNALIGNED_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace kvasir::kernels {

inline std::uint16_t read_u16(const std::byte* p) {
  std::uint16_t value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

inline std::uint32_t read_u32(const std::byte* p) {
  std::uint32_t value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

}  // namespace kvasir::kernels

#endif  // KVASIR_KERNELS_UNALIGNED_H_
