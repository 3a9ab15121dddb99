#include "formats/untrusted_file_test.h"

#include <atomic>
#include <cstdlib>
#include <new>

namespace {
std::atomic<std::size_t> largest = 0;
}

// All forms of operator new but those for aligned types, so that each finds its operator delete. Inlined, g++
// 12 would warn of free() without malloc().
[[gnu::noinline]] void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  std::size_t seen = largest;
  while (seen < bytes && !largest.compare_exchange_weak(seen, bytes)) {
  }
  return std::malloc(bytes != 0 ? bytes : 1);
}
void* operator new[](std::size_t bytes, const std::nothrow_t& tag) noexcept {
  return operator new(bytes, tag);
}
void* operator new(std::size_t bytes) {
  if (void* memory = operator new(bytes, std::nothrow)) return memory;
  throw std::bad_alloc();
}
void* operator new[](std::size_t bytes) { return operator new(bytes); }
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { operator delete(memory); }
void operator delete[](void* memory) noexcept { operator delete(memory); }
void operator delete[](void* memory, std::size_t) noexcept { operator delete(memory); }

namespace kvasir {

std::size_t largest_allocation() { return largest; }
void reset_largest_allocation() { largest = 0; }

namespace {

TEST(UntrustedFileTest, TheProbeSeesAllocations) {
  reset_largest_allocation();
  const std::vector<std::byte> block(12'345);
  EXPECT_EQ(largest_allocation(), block.size());
}

}  // namespace
}  // namespace kvasir
