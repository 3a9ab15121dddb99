// In a file of its own, so that a test can take its place.
#if defined(__x86_64__)

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

#include "kernels/instruction_sets.h"

namespace kvasir::kernels {
namespace {

constexpr unsigned kTileData = 18;               // the number of the tiles among the states of a processor
constexpr std::uint32_t kTileStates = 3U << 17;  // their configuration and data, in XCR0
constexpr unsigned kAmxTile = 1U << 24, kAmxInt8 = 1U << 25;

std::uint32_t enabled_states() {
  std::uint32_t low = 0, high = 0;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}

}  // namespace

bool request_amx() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  if (__get_cpuid(1, &eax, &ebx, &ecx, &edx) == 0 || (ecx & bit_OSXSAVE) == 0) return false;
  if (__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) == 0) return false;
  if ((edx & kAmxTile) == 0 || (edx & kAmxInt8) == 0) return false;
  if ((enabled_states() & kTileStates) != kTileStates) return false;
  // Linux lets a process use tiles, which make its saved state 8 KiB larger, only if it asks.
  constexpr int kRequestPermission = 0x1023;  // ARCH_REQ_XCOMP_PERM, which older headers lack
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

}  // namespace kvasir::kernels

#endif  // defined(__x86_64__)
