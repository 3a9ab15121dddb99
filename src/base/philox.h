// Philox 4x32-10, a counter-based random number generator: a keyed bijection of 128-bit blocks.
// Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
#ifndef KVASIR_BASE_PHILOX_H_
#define KVASIR_BASE_PHILOX_H_

#include <array>
#include <cstdint>

namespace kvasir {

// Always inlined, for the reason given in elementary.h.
[[gnu::always_inline]] inline std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                                                      std::array<std::uint32_t, 2> key) {
  constexpr std::uint64_t kMultiplier0 = 0xD2511F53, kMultiplier1 = 0xCD9E8D57;
  constexpr std::uint32_t kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;  // golden ratio, sqrt(3) - 1
  auto [c0, c1, c2, c3] = counter;
  auto [k0, k1] = key;
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t product0 = kMultiplier0 * c0;
    const std::uint64_t product1 = kMultiplier1 * c2;
    c0 = static_cast<std::uint32_t>(product1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<std::uint32_t>(product1);
    c2 = static_cast<std::uint32_t>(product0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<std::uint32_t>(product0);
    k0 += kWeyl0;
    k1 += kWeyl1;
  }
  return {c0, c1, c2, c3};
}

}  // namespace kvasir

#endif  // KVASIR_BASE_PHILOX_H_
