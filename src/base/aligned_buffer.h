#ifndef KVASIR_BASE_ALIGNED_BUFFER_H_
#define KVASIR_BASE_ALIGNED_BUFFER_H_

#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <type_traits>

namespace kvasir {

// An array of numbers that starts on a cache line. Moves, does not copy.
template <class T>
class AlignedBuffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  static constexpr std::size_t kAlignment = 64;  // bytes: one cache line, one AVX-512 register

  AlignedBuffer() = default;
  explicit AlignedBuffer(std::size_t size) : AlignedBuffer(uninitialized(size)) {
    if (size > 0) std::memset(static_cast<void*>(data_.get()), 0, size * sizeof(T));
  }

  // For what is written before it is read. Large ones ask for huge pages: fewer faults while they are
  // filled, fewer misses while they are read.
  static AlignedBuffer uninitialized(std::size_t size) {
    AlignedBuffer buffer;
    buffer.size_ = size;
    if (size == 0) return buffer;
    const std::size_t bytes = size * sizeof(T);
    const std::size_t alignment = bytes >= 2 * kHugePage ? kHugePage : kAlignment;
    const std::size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    void* memory = nullptr;
    if (posix_memalign(&memory, alignment, rounded) != 0) throw std::bad_alloc();
    buffer.data_.reset(static_cast<T*>(memory));
    if (alignment == kHugePage) madvise(memory, rounded / kHugePage * kHugePage, MADV_HUGEPAGE);
    return buffer;
  }

  // Makes room for at least `size` elements; contents are not kept.
  void reserve(std::size_t size) {
    if (size > size_) *this = AlignedBuffer(size);
  }

  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  std::size_t size() const { return size_; }
  T& operator[](std::size_t i) { return data_.get()[i]; }
  const T& operator[](std::size_t i) const { return data_.get()[i]; }

 private:
  static constexpr std::size_t kHugePage = std::size_t{2} << 20;
  struct Free {
    void operator()(T* p) const { std::free(p); }
  };
  std::unique_ptr<T, Free> data_;
  std::size_t size_ = 0;
};

}  // namespace kvasir

#endif  // KVASIR_BASE_ALIGNED_BUFFER_H_
