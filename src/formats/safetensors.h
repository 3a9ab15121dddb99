// Reading and writing safetensors files.
//
// Source of the format: the README of the safetensors repository. A file is not trusted (see gguf.h).
#ifndef KVASIR_FORMATS_SAFETENSORS_H_
#define KVASIR_FORMATS_SAFETENSORS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir {

struct SafetensorsTensor {
  std::string name;
  std::string dtype;                 // "F32", "F16", "BF16", "F64", "I32", ... as the file spells it
  std::vector<std::uint64_t> shape;  // row-major
  std::span<const std::byte> data;
};

// Immutable after opening; may be read from several threads.
class SafetensorsFile {
 public:
  static SafetensorsFile open(const std::string& path);
  // The same for a file's content in memory; `name` stands for the path in messages.
  static SafetensorsFile parse(std::vector<std::byte> content, const std::string& name);
  ~SafetensorsFile();
  SafetensorsFile(SafetensorsFile&&) noexcept;
  SafetensorsFile& operator=(SafetensorsFile&&) noexcept;

  const std::string& path() const;
  const std::vector<SafetensorsTensor>& tensors() const;              // in order of their data
  const std::map<std::string, std::string>& metadata() const;         // the header's __metadata__
  const SafetensorsTensor* find_tensor(std::string_view name) const;  // nullptr if absent
  const SafetensorsTensor& tensor(std::string_view name) const;       // Error(kFormat) if absent

 private:
  struct State;
  explicit SafetensorsFile(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Writes the tensors in the given order. Error(kInvalidArgument) if a tensor's data does not match its dtype
// and shape. The file appears under its name only when it is complete (written beside it, flushed, then
// renamed); Error(kIo) otherwise.
void write_safetensors(const std::string& path, const std::vector<SafetensorsTensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace kvasir

#endif  // KVASIR_FORMATS_SAFETENSORS_H_
