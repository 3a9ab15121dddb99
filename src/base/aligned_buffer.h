#ifndef KVASIR_BASE_ALIGNED_BUFFER_H_
#define KVASIR_BASE_ALIGNED_BUFFER_H_

#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <type_traits>

namespace kvasir {

// A zeroed array of numbers that starts on a cache line. Moves, does not copy.
template <class T>
class AlignedBuffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  static constexpr std::size_t kAlignment = 64;  // bytes: one cache line, one AVX-512 register

  AlignedBuffer() = default;
  explicit AlignedBuffer(std::size_t size) : size_(size) {
    const std::size_t bytes = (size * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
    if (bytes == 0) return;
    data_.reset(static_cast<T*>(::operator new (bytes, std::align_val_t{kAlignment})));
    std::memset(static_cast<void*>(data_.get()), 0, bytes);
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
  struct Free {
    void operator()(T* p) const { ::operator delete (static_cast<void*>(p), std::align_val_t{kAlignment}); }
  };
  std::unique_ptr<T, Free> data_;
  std::size_t size_ = 0;
};

}  // namespace kvasir

#endif  // KVASIR_BASE_ALIGNED_BUFFER_H_
