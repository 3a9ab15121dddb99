// A helper of tests: builds GGUF files in memory, valid ones and, with the raw functions, broken ones.
#ifndef KVASIR_FORMATS_GGUF_BUILDER_H_
#define KVASIR_FORMATS_GGUF_BUILDER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "formats/gguf.h"

namespace kvasir {

// Bytes in GGUF's encoding.
class GgufBytes {
 public:
  template <class T>
  requires std::is_arithmetic_v<T> GgufBytes& number(T value) {
    return raw(std::as_bytes(std::span(&value, 1)));
  }
  GgufBytes& string(std::string_view text) {
    number(std::uint64_t{text.size()});
    return raw(std::as_bytes(std::span(text.data(), text.size())));
  }
  GgufBytes& raw(std::span<const std::byte> bytes) {
    const std::size_t end = bytes_.size();
    bytes_.resize(end + bytes.size());  // g++ 12 warns of insert() for no reason
    std::copy(bytes.begin(), bytes.end(), bytes_.begin() + static_cast<std::ptrdiff_t>(end));
    return *this;
  }
  GgufBytes& pad_to_multiple_of(std::size_t alignment) {
    bytes_.resize((bytes_.size() + alignment - 1) / alignment * alignment);
    return *this;
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

// GgufBuilder builder;
// builder.add("general.architecture", "llama").add("llama.block_count", std::uint32_t{2});
// builder.add_f32("output_norm.weight", {4}, {1, 1, 1, 1});
// GgufFile file = GgufFile::parse(builder.build(), "toy.gguf");
class GgufBuilder {
 public:
  GgufBuilder& version(std::uint32_t version) {
    version_ = version;
    return *this;
  }
  // Writes general.alignment, and aligns the tensors that are added afterwards.
  GgufBuilder& alignment(std::uint32_t bytes) {
    alignment_ = bytes;
    return add("general.alignment", bytes);
  }

  template <class T>
  requires std::is_arithmetic_v<T> GgufBuilder& add(std::string_view key, T value) {
    return add_raw(key, type_id<T>(), GgufBytes().number(value));
  }
  GgufBuilder& add(std::string_view key, std::string_view value) {
    return add_raw(key, type_id<std::string>(), GgufBytes().string(value));
  }
  GgufBuilder& add(std::string_view key, const char* value) { return add(key, std::string_view(value)); }
  // T: a number type, std::string or std::string_view.
  template <class T>
  GgufBuilder& add_array(std::string_view key, const std::vector<T>& values) {
    GgufBytes bytes;
    bytes.number(type_id<T>()).number(std::uint64_t{values.size()});
    for (const auto& value : values) {
      if constexpr (std::is_arithmetic_v<T>) {
        bytes.number(static_cast<T>(value));
      } else {
        bytes.string(value);
      }
    }
    return add_raw(key, static_cast<std::uint32_t>(GgufValueType::kArray), bytes);
  }
  GgufBuilder& add_raw(std::string_view key, std::uint32_t type, const GgufBytes& value) {
    entries_.string(key).number(type).raw(value.bytes());
    ++entry_count_;
    return *this;
  }

  // shape: row-major, as in GgufTensor. data: as many bytes as type and shape need.
  GgufBuilder& add_tensor(std::string_view name, TensorType type, const std::vector<std::uint64_t>& shape,
                          std::span<const std::byte> data) {
    data_.pad_to_multiple_of(alignment_);
    add_raw_tensor(name, {shape.rbegin(), shape.rend()}, static_cast<std::uint32_t>(type),
                   data_.bytes().size());
    return add_raw_data(data);
  }
  GgufBuilder& add_f32(std::string_view name, const std::vector<std::uint64_t>& shape,
                       const std::vector<float>& values) {
    return add_tensor(name, TensorType::kF32, shape, std::as_bytes(std::span(values)));
  }
  // Only the tensor's description. dimensions: in the file's order, fastest first.
  GgufBuilder& add_raw_tensor(std::string_view name, const std::vector<std::uint64_t>& dimensions,
                              std::uint32_t type, std::uint64_t offset) {
    tensors_.string(name).number(static_cast<std::uint32_t>(dimensions.size()));
    for (const std::uint64_t size : dimensions) tensors_.number(size);
    tensors_.number(type).number(offset);
    ++tensor_count_;
    return *this;
  }
  GgufBuilder& add_raw_data(std::span<const std::byte> data) {
    data_.raw(data);
    return *this;
  }

  std::vector<std::byte> build() const {
    GgufBytes file;
    file.raw(std::as_bytes(std::span("GGUF", 4))).number(version_).number(tensor_count_).number(entry_count_);
    file.raw(entries_.bytes()).raw(tensors_.bytes());
    if (tensor_count_ > 0) file.pad_to_multiple_of(alignment_).raw(data_.bytes());
    return file.bytes();
  }
  void write(const std::string& path) const {
    const std::vector<std::byte> bytes = build();
    std::ofstream file(path, std::ios::binary);
    file.exceptions(std::ios::badbit | std::ios::failbit);
    file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    file.close();
  }

  template <class T>
  static constexpr std::uint32_t type_id() {
    using Type = GgufValueType;
    Type type = Type::kString;
    if constexpr (std::is_same_v<T, bool>) {
      type = Type::kBool;
    } else if constexpr (std::is_floating_point_v<T>) {
      type = sizeof(T) == 4 ? Type::kFloat32 : Type::kFloat64;
    } else if constexpr (std::is_integral_v<T>) {
      constexpr bool kSigned = std::is_signed_v<T>;
      type = sizeof(T) == 1   ? (kSigned ? Type::kInt8 : Type::kUint8)
             : sizeof(T) == 2 ? (kSigned ? Type::kInt16 : Type::kUint16)
             : sizeof(T) == 4 ? (kSigned ? Type::kInt32 : Type::kUint32)
                              : (kSigned ? Type::kInt64 : Type::kUint64);
    }
    return static_cast<std::uint32_t>(type);
  }

 private:
  std::uint32_t version_ = 3;
  std::uint32_t alignment_ = 32;
  std::uint64_t entry_count_ = 0;
  std::uint64_t tensor_count_ = 0;
  GgufBytes entries_;
  GgufBytes tensors_;
  GgufBytes data_;
};

}  // namespace kvasir

#endif  // KVASIR_FORMATS_GGUF_BUILDER_H_
