#include "base/memory_arena.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <vector>

namespace kvasir {
namespace {

TEST(MemoryArena, GivesAlignedPartsThatDoNotOverlapAndOutliveIt) {
  struct Part {
    std::shared_ptr<std::byte[]> memory;
    std::size_t bytes;
  };
  std::vector<Part> parts;
  {
    MemoryArena arena;
    // Across the end of a block, and one larger than half a block.
    for (const std::size_t bytes :
         {std::size_t{1}, std::size_t{65}, std::size_t{30} << 20, std::size_t{25} << 20,
          std::size_t{20} << 20, std::size_t{33} << 20, std::size_t{1000}}) {
      parts.push_back({arena.take(bytes), bytes});
    }
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(parts[i].memory.get()) % 64, 0U);
    std::memset(parts[i].memory.get(), static_cast<int>(i) + 1, parts[i].bytes);
  }
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::byte expected{static_cast<unsigned char>(i + 1)};
    EXPECT_EQ(parts[i].memory[0], expected);
    EXPECT_EQ(parts[i].memory[static_cast<std::ptrdiff_t>(parts[i].bytes) - 1], expected);
  }
}

}  // namespace
}  // namespace kvasir
