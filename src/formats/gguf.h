// Reading GGUF files (versions 2 and 3, little endian) through a memory map.
//
// Source of the format: the GGUF specification in the ggml repository (docs/gguf.md).
// A file is not trusted: every count and length is checked against the bytes that are left before anything is
// allocated from it, and an Error(kFormat) names the file and the field.
#ifndef KVASIR_FORMATS_GGUF_H_
#define KVASIR_FORMATS_GGUF_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/tensor_type.h"

namespace kvasir {

enum class GgufValueType : std::uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

// One metadata entry. Arrays stay in the mapped file and are decoded when asked for.
struct GgufEntry {
  std::string_view key;
  GgufValueType type;
  GgufValueType element_type;       // of an array; else equal to type
  std::uint64_t count;              // elements of an array; else 1
  std::span<const std::byte> data;  // the encoded value (array: its elements)
};

struct GgufTensor {
  std::string_view name;
  TensorType type;
  std::vector<std::uint64_t> shape;  // row-major, slowest first: [rows, columns] (GGUF stores the reverse)
  std::span<const std::byte> data;
};

// Immutable after opening; may be read from several threads.
class GgufFile {
 public:
  static GgufFile open(const std::string& path);
  // The same for a file's content in memory; `name` stands for the path in messages.
  static GgufFile parse(std::vector<std::byte> content, const std::string& name);
  ~GgufFile();
  GgufFile(GgufFile&&) noexcept;
  GgufFile& operator=(GgufFile&&) noexcept;

  const std::string& path() const;
  std::uint32_t version() const;
  std::uint64_t alignment() const;
  std::uint64_t file_bytes() const;
  const std::vector<GgufEntry>& entries() const;   // in file order
  const std::vector<GgufTensor>& tensors() const;  // in file order

  const GgufEntry* find(std::string_view key) const;           // nullptr if absent
  const GgufTensor* find_tensor(std::string_view name) const;  // nullptr if absent
  const GgufTensor& tensor(std::string_view name) const;       // Error(kFormat) if absent

  // The tensor will not be read again soon: its pages need not stay in memory.
  void release(const GgufTensor& tensor) const;

  // Values by key: nullopt if absent, Error(kFormat) naming file and key if present with another type.
  // Any integer type that holds the value serves for an integer, either float type for a float.
  std::optional<std::int64_t> find_int(std::string_view key) const;
  std::optional<double> find_float(std::string_view key) const;
  std::optional<bool> find_bool(std::string_view key) const;
  std::optional<std::string_view> find_string(std::string_view key) const;
  std::optional<std::vector<std::string_view>> find_string_array(std::string_view key) const;
  std::optional<std::vector<std::int64_t>> find_int_array(std::string_view key) const;
  std::optional<std::vector<double>> find_float_array(std::string_view key) const;
  // As above, but absence is an Error(kFormat) too.
  std::int64_t get_int(std::string_view key) const;
  double get_float(std::string_view key) const;
  std::string_view get_string(std::string_view key) const;

 private:
  struct State;
  explicit GgufFile(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace kvasir

#endif  // KVASIR_FORMATS_GGUF_H_
