// What the readers of this room share: the bytes of an untrusted file, and how to complain about them.
#ifndef KVASIR_FORMATS_FILE_CONTENT_H_
#define KVASIR_FORMATS_FILE_CONTENT_H_

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"

namespace kvasir {

// The bytes of a mapped file, or bytes in memory. They keep their address when the object is moved.
class FileContent {
 public:
  explicit FileContent(MappedFile map) : map_(std::move(map)) {}
  explicit FileContent(std::vector<std::byte> memory) : memory_(std::move(memory)) {}
  std::span<const std::byte> bytes() const { return map_ ? map_->bytes() : std::span(memory_); }
  void release(std::span<const std::byte> part) const {
    if (map_) map_->release(part);
  }

 private:
  std::optional<MappedFile> map_;
  std::vector<std::byte> memory_;
};

// A name from the file in quotation marks, fit for a one-line message whatever its length and bytes are.
std::string quoted_name(std::string_view name);

// Throws Error(kFormat) "path: where: problem".
[[noreturn]] void throw_format_error(std::string_view path, std::string_view where, std::string_view problem);

}  // namespace kvasir

#endif  // KVASIR_FORMATS_FILE_CONTENT_H_
