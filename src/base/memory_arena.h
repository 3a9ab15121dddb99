// Memory for many arrays that live as long as each other: one large block after the other, each with huge
// pages if the system has some. Small arrays of their own would lie on small pages, which slow down reading
// through all of them.
#ifndef KVASIR_BASE_MEMORY_ARENA_H_
#define KVASIR_BASE_MEMORY_ARENA_H_

#include <cstddef>
#include <memory>

#include "base/aligned_buffer.h"

namespace kvasir {

class MemoryArena {
 public:
  // Uninitialised, on a cache line. Keeps its block alive, also after the arena.
  std::shared_ptr<std::byte[]> take(std::size_t bytes) {
    constexpr std::size_t kLine = AlignedBuffer<std::byte>::kAlignment;
    const std::size_t rounded = (bytes + kLine - 1) / kLine * kLine;
    if (rounded > kBlockBytes / 2) return all_of(rounded);
    if (block_ == nullptr || rounded > kBlockBytes - used_) {
      block_ = all_of(kBlockBytes);
      used_ = 0;
    }
    const std::size_t begin = used_;
    used_ += rounded;
    return {block_, block_.get() + begin};
  }

 private:
  static constexpr std::size_t kBlockBytes = std::size_t{64} << 20;  // what is not touched costs nothing

  static std::shared_ptr<std::byte[]> all_of(std::size_t bytes) {
    const auto owner =
        std::make_shared<AlignedBuffer<std::byte>>(AlignedBuffer<std::byte>::uninitialized(bytes));
    return {owner, owner->data()};
  }

  std::shared_ptr<std::byte[]> block_;
  std::size_t used_ = 0;
};

}  // namespace kvasir

#endif  // KVASIR_BASE_MEMORY_ARENA_H_
