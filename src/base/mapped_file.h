// A read-only memory map of a whole file.
#ifndef KVASIR_BASE_MAPPED_FILE_H_
#define KVASIR_BASE_MAPPED_FILE_H_

#include <cstddef>
#include <span>
#include <string>

namespace kvasir {

class MappedFile {
 public:
  // Error(kIo) if the file cannot be opened, is no regular file or cannot be mapped. An empty file maps to 0
  // bytes.
  static MappedFile open(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;

  std::span<const std::byte> bytes() const { return {data_, size_}; }

  // Gives back the memory of the whole pages of this part; it is read again from the file if it is touched.
  void release(std::span<const std::byte> part) const;

 private:
  MappedFile(const std::byte* data, std::size_t size) : data_(data), size_(size) {}
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace kvasir

#endif  // KVASIR_BASE_MAPPED_FILE_H_
