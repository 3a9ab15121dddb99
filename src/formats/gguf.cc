#include "formats/gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <utility>

#include "formats/file_content.h"
#include "formats/gguf_value.h"
#include "formats/name_index.h"
#include "kvasir/error.h"

namespace kvasir {

// Numbers, blocks and floats are used as they lie in the file.
static_assert(std::endian::native == std::endian::little);

struct GgufFile::State {
  std::string path;
  FileContent content;
  std::uint32_t version = 0;
  std::uint64_t alignment = 32;  // what the specification says where general.alignment is absent
  std::vector<GgufEntry> entries;
  std::vector<GgufTensor> tensors;
  NameIndex<GgufEntry, &GgufEntry::key> entry_index;
  NameIndex<GgufTensor, &GgufTensor::name> tensor_index;

  State(std::string name, FileContent bytes) : path(std::move(name)), content(std::move(bytes)) {}
  void parse();
};

namespace {

constexpr std::size_t kHeaderBytes = 24;     // magic, version, tensor count, entry count
constexpr std::uint32_t kMaxDimensions = 4;  // the specification's limit
constexpr int kMaxArrayDepth = 4;            // arrays may be nested; no known writer does so even once
constexpr std::size_t kMaxKeyBytes = 65535;  // the specification's limit

[[noreturn]] void fail_entry(const std::string& path, std::string_view key, std::string_view problem) {
  throw_format_error(path, fmt::format("key {}", quoted_name(key)), problem);
}

[[noreturn]] void fail_tensor(const std::string& path, std::string_view name, std::string_view problem) {
  throw_format_error(path, fmt::format("tensor {}", quoted_name(name)), problem);
}

std::string type_text(const GgufEntry& entry) {
  const auto name_of = [](GgufValueType type) {
    return gguf_value_type_info(static_cast<std::uint32_t>(type))->name;
  };
  if (entry.type != GgufValueType::kArray) return fmt::format("of type {}", name_of(entry.type));
  return fmt::format("an array of {}", name_of(entry.element_type));
}

// Reads the file from front to back. Every count and length is compared with the bytes that are left before
// it is used.
class Parser {
 public:
  Parser(const std::string& path, std::span<const std::byte> bytes) : path_(path), bytes_(bytes) {}

  struct Header {
    std::uint32_t version;
    std::uint64_t tensor_count;
    std::uint64_t entry_count;
  };
  Header read_header();
  GgufEntry read_entry(std::uint64_t index);
  // The tensor without its data, and the offset of that data within the file's data section.
  std::pair<GgufTensor, std::uint64_t> read_tensor(std::uint64_t index);
  std::span<const std::byte> rest_from_multiple_of(std::uint64_t alignment) const;

 private:
  // What is being read, for messages: the name once it is known, else the index.
  struct Subject {
    std::string_view kind;
    std::uint64_t index;
    std::string_view name;
  };

  [[noreturn]] void fail(std::string_view problem) const {
    throw_format_error(path_,
                       subject_.kind.empty() ? "header"
                       : subject_.name.empty()
                           ? fmt::format("{} number {}", subject_.kind, subject_.index)
                           : fmt::format("{} {}", subject_.kind, quoted_name(subject_.name)),
                       problem);
  }
  std::uint64_t left() const { return bytes_.size() - position_; }
  void require(std::uint64_t bytes, std::string_view field) const {
    if (bytes > left()) {
      fail(fmt::format("{} needs {} bytes, {} are left in the file", field, bytes, left()));
    }
  }
  template <class T>
  T read(std::string_view field) {
    require(sizeof(T), field);
    const T value = load_unaligned<T>(bytes_, position_);
    position_ += sizeof(T);
    return value;
  }
  std::string_view read_string(std::string_view field);
  const GgufValueTypeInfo& read_value_type(std::uint32_t* id, std::string_view field);
  void skip_values(GgufValueType type, std::uint64_t count, int depth);

  const std::string& path_;
  std::span<const std::byte> bytes_;
  std::size_t position_ = 0;
  Subject subject_ = {};
};

Parser::Header Parser::read_header() {
  constexpr std::string_view kMagic = "GGUF";
  const std::size_t magic_bytes = std::min(bytes_.size(), kMagic.size());
  if (!std::equal(kMagic.begin(), kMagic.begin() + static_cast<std::ptrdiff_t>(magic_bytes), bytes_.begin(),
                  [](char a, std::byte b) { return static_cast<std::byte>(a) == b; })) {
    fail("not a GGUF file (it does not begin with \"GGUF\")");
  }
  if (bytes_.size() < kHeaderBytes) {
    fail(fmt::format("the file ends after {} of the header's {} bytes", bytes_.size(), kHeaderBytes));
  }
  position_ = kMagic.size();
  Header header = {};
  header.version = read<std::uint32_t>("version");
  if (header.version != 2 && header.version != 3) {
    const bool big_endian = (header.version & 0xffff) == 0 && header.version != 0;
    fail(big_endian
             ? std::string("the file is big endian; convert it to little endian")
             : fmt::format("version {} is not supported; convert the file to version 3", header.version));
  }
  header.tensor_count = read<std::uint64_t>("tensor count");
  header.entry_count = read<std::uint64_t>("metadata count");
  // The least that one takes: an entry of a 1-byte key and value; a tensor of a 1-byte name and one
  // dimension.
  constexpr std::uint64_t kMinEntryBytes = 8 + 1 + 4 + 1;
  constexpr std::uint64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;
  if (header.entry_count > left() / kMinEntryBytes) {
    fail(fmt::format("metadata count {} does not fit in the file's {} bytes", header.entry_count,
                     bytes_.size()));
  }
  if (header.tensor_count > left() / kMinTensorBytes) {
    fail(fmt::format("tensor count {} does not fit in the file's {} bytes", header.tensor_count,
                     bytes_.size()));
  }
  return header;
}

std::string_view Parser::read_string(std::string_view field) {
  const auto length = read<std::uint64_t>(field);
  require(length, field);
  const auto text = bytes_.subspan(position_, length);
  position_ += length;
  return {reinterpret_cast<const char*>(text.data()), text.size()};
}

const GgufValueTypeInfo& Parser::read_value_type(std::uint32_t* id, std::string_view field) {
  *id = read<std::uint32_t>(field);
  const GgufValueTypeInfo* info = gguf_value_type_info(*id);
  if (info == nullptr) fail(fmt::format("{} {} is unknown", field, *id));
  return *info;
}

void Parser::skip_values(GgufValueType type, std::uint64_t count, int depth) {
  const GgufValueTypeInfo& info = *gguf_value_type_info(static_cast<std::uint32_t>(type));
  if (count > left() / info.min_bytes) {
    fail(fmt::format("{} values of type {} do not fit in the {} bytes left in the file", count, info.name,
                     left()));
  }
  if (type == GgufValueType::kString) {
    for (std::uint64_t i = 0; i < count; ++i) read_string("string");
  } else if (type == GgufValueType::kArray) {
    if (depth == kMaxArrayDepth) fail(fmt::format("arrays are nested more than {} deep", kMaxArrayDepth));
    for (std::uint64_t i = 0; i < count; ++i) {
      std::uint32_t element_type = 0;
      read_value_type(&element_type, "array element type");
      const auto element_count = read<std::uint64_t>("array count");
      skip_values(static_cast<GgufValueType>(element_type), element_count, depth + 1);
    }
  } else {
    if (type == GgufValueType::kBool) {
      const auto flags = bytes_.subspan(position_, count);
      if (std::any_of(flags.begin(), flags.end(), [](std::byte flag) { return flag > std::byte{1}; })) {
        fail("a bool is neither 0 nor 1");
      }
    }
    position_ += count * info.bytes;
  }
}

GgufEntry Parser::read_entry(std::uint64_t index) {
  subject_ = {"key", index, {}};
  GgufEntry entry = {};
  entry.key = read_string("key");
  if (entry.key.empty()) fail("the key is empty");
  subject_.name = entry.key;
  if (entry.key.size() > kMaxKeyBytes) {
    fail(fmt::format("the key is {} bytes long, at most {} are allowed", entry.key.size(), kMaxKeyBytes));
  }
  std::uint32_t type = 0;
  read_value_type(&type, "value type");
  entry.type = static_cast<GgufValueType>(type);
  entry.count = 1;
  if (entry.type == GgufValueType::kArray) {
    read_value_type(&type, "array element type");
    entry.count = read<std::uint64_t>("array count");
  }
  entry.element_type = static_cast<GgufValueType>(type);
  const std::size_t begin = position_;
  skip_values(entry.element_type, entry.count, entry.type == GgufValueType::kArray ? 1 : 0);
  entry.data = bytes_.subspan(begin, position_ - begin);
  return entry;
}

// Bytes of the tensor, or nothing if 64 bits cannot count them.
std::optional<std::uint64_t> tensor_bytes(const GgufTensor& tensor) {
  const TensorTypeInfo& info = tensor_type_info(tensor.type);
  std::uint64_t bytes = tensor.shape.back() / info.block_values;
  for (std::size_t i = 0; i + 1 < tensor.shape.size(); ++i) {
    if (__builtin_mul_overflow(bytes, tensor.shape[i], &bytes)) return std::nullopt;
  }
  if (__builtin_mul_overflow(bytes, info.block_bytes, &bytes)) return std::nullopt;
  return bytes;
}

std::pair<GgufTensor, std::uint64_t> Parser::read_tensor(std::uint64_t index) {
  subject_ = {"tensor", index, {}};
  GgufTensor tensor = {};
  tensor.name = read_string("name");
  if (tensor.name.empty()) fail("the name is empty");
  subject_.name = tensor.name;
  const auto n_dimensions = read<std::uint32_t>("number of dimensions");
  if (n_dimensions < 1 || n_dimensions > kMaxDimensions) {
    fail(fmt::format("{} dimensions, 1 to {} are allowed", n_dimensions, kMaxDimensions));
  }
  tensor.shape.resize(n_dimensions);
  for (std::uint32_t i = 0; i < n_dimensions; ++i) {
    const auto size = read<std::uint64_t>("dimension");
    if (size == 0) fail(fmt::format("dimension {} is 0", i));
    tensor.shape[n_dimensions - 1 - i] = size;
  }
  const auto type_id = read<std::uint32_t>("type");
  const std::optional<TensorType> type = tensor_type_from_gguf(type_id);
  if (!type) {
    const std::string_view type_name = gguf_tensor_type_name(type_id);
    fail(type_name.empty()
             ? fmt::format("type {} is unknown", type_id)
             : fmt::format("type {} is not supported; requantize the model, for example to Q8_0 or Q4_K",
                           type_name));
  }
  tensor.type = *type;
  const TensorTypeInfo& info = tensor_type_info(tensor.type);
  if (tensor.shape.back() % info.block_values != 0) {
    fail(fmt::format("rows of {} numbers are no multiple of the {} in a block of type {}",
                     tensor.shape.back(), info.block_values, info.name));
  }
  if (!tensor_bytes(tensor)) fail("its dimensions overflow");
  const auto offset = read<std::uint64_t>("offset");
  return {std::move(tensor), offset};
}

std::span<const std::byte> Parser::rest_from_multiple_of(std::uint64_t alignment) const {
  const std::uint64_t padding = (alignment - position_ % alignment) % alignment;
  return padding <= left() ? bytes_.subspan(position_ + padding) : std::span<const std::byte>();
}

void require_no_overlap(const std::string& path, const std::vector<GgufTensor>& tensors) {
  std::vector<const GgufTensor*> by_place;
  by_place.reserve(tensors.size());
  for (const GgufTensor& tensor : tensors) by_place.push_back(&tensor);
  std::sort(by_place.begin(), by_place.end(),
            [](const GgufTensor* a, const GgufTensor* b) { return a->data.data() < b->data.data(); });
  for (std::size_t i = 1; i < by_place.size(); ++i) {
    const GgufTensor& before = *by_place[i - 1];
    if (by_place[i]->data.data() < before.data.data() + before.data.size()) {
      fail_tensor(path, by_place[i]->name,
                  fmt::format("its data overlaps that of {}", quoted_name(before.name)));
    }
  }
}

// The specification: a multiple of 8, not necessarily a power of two.
std::uint64_t checked_alignment(const std::string& path, const GgufEntry& entry) {
  if (!gguf_int_at(entry.type, entry.data, 0)) {
    fail_entry(path, entry.key, fmt::format("must be an integer, is {}", type_text(entry)));
  }
  const std::int64_t alignment = *gguf_int_at(entry.type, entry.data, 0);
  if (alignment <= 0 || alignment % 8 != 0) {
    fail_entry(path, entry.key, fmt::format("{} is not a positive multiple of 8", alignment));
  }
  return static_cast<std::uint64_t>(alignment);
}

}  // namespace

void GgufFile::State::parse() {
  Parser parser(path, content.bytes());
  const Parser::Header header = parser.read_header();
  version = header.version;
  for (std::uint64_t i = 0; i < header.entry_count; ++i) entries.push_back(parser.read_entry(i));
  entry_index.build(entries);
  if (const GgufEntry* entry = entry_index.duplicate()) fail_entry(path, entry->key, "appears twice");
  if (const GgufEntry* entry = entry_index.find("general.alignment"))
    alignment = checked_alignment(path, *entry);

  std::vector<std::uint64_t> offsets;
  for (std::uint64_t i = 0; i < header.tensor_count; ++i) {
    auto [tensor, offset] = parser.read_tensor(i);
    tensors.push_back(std::move(tensor));
    offsets.push_back(offset);
  }
  tensor_index.build(tensors);
  if (const GgufTensor* tensor = tensor_index.duplicate()) fail_tensor(path, tensor->name, "appears twice");

  const std::span<const std::byte> data = parser.rest_from_multiple_of(alignment);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    GgufTensor& tensor = tensors[i];
    const std::uint64_t bytes = *tensor_bytes(tensor);
    if (offsets[i] % alignment != 0) {
      fail_tensor(path, tensor.name,
                  fmt::format("offset {} is no multiple of the alignment {}", offsets[i], alignment));
    }
    if (offsets[i] > data.size() || bytes > data.size() - offsets[i]) {
      fail_tensor(
          path, tensor.name,
          fmt::format(
              "its {} bytes at offset {} end beyond the file's {} bytes of data; the file may be cut off",
              bytes, offsets[i], data.size()));
    }
    tensor.data = data.subspan(offsets[i], bytes);
  }
  require_no_overlap(path, tensors);
}

GgufFile::GgufFile(std::unique_ptr<State> state) : state_(std::move(state)) {}
GgufFile::~GgufFile() = default;
GgufFile::GgufFile(GgufFile&&) noexcept = default;
GgufFile& GgufFile::operator=(GgufFile&&) noexcept = default;

GgufFile GgufFile::open(const std::string& path) {
  auto state = std::make_unique<State>(path, FileContent(MappedFile::open(path)));
  state->parse();
  return GgufFile(std::move(state));
}

GgufFile GgufFile::parse(std::vector<std::byte> content, const std::string& name) {
  auto state = std::make_unique<State>(name, FileContent(std::move(content)));
  state->parse();
  return GgufFile(std::move(state));
}

const std::string& GgufFile::path() const { return state_->path; }
std::uint32_t GgufFile::version() const { return state_->version; }
std::uint64_t GgufFile::alignment() const { return state_->alignment; }
void GgufFile::release(const GgufTensor& tensor) const { state_->content.release(tensor.data); }

std::uint64_t GgufFile::file_bytes() const { return state_->content.bytes().size(); }
const std::vector<GgufEntry>& GgufFile::entries() const { return state_->entries; }
const std::vector<GgufTensor>& GgufFile::tensors() const { return state_->tensors; }
const GgufEntry* GgufFile::find(std::string_view key) const { return state_->entry_index.find(key); }
const GgufTensor* GgufFile::find_tensor(std::string_view name) const {
  return state_->tensor_index.find(name);
}

const GgufTensor& GgufFile::tensor(std::string_view name) const {
  const GgufTensor* tensor = find_tensor(name);
  if (tensor == nullptr) fail_tensor(path(), name, "is missing");
  return *tensor;
}

namespace {

[[noreturn]] void fail_type(const std::string& path, const GgufEntry& entry, std::string_view wanted) {
  fail_entry(path, entry.key, fmt::format("must be {}, is {}", wanted, type_text(entry)));
}

// The entry's one value by `decode(type, data, index)`, which returns nothing if the type or value is
// another.
template <class Decode>
auto scalar(const std::string& path, const GgufEntry* entry, std::string_view wanted, Decode decode)
    -> decltype(decode(entry->type, entry->data, 0)) {
  if (entry == nullptr) return std::nullopt;
  const auto value = decode(entry->type, entry->data, 0);
  if (!value) fail_type(path, *entry, wanted);
  return value;
}

template <class T, class Decode>
std::optional<std::vector<T>> array(const std::string& path, const GgufEntry* entry, std::string_view wanted,
                                    Decode decode) {
  if (entry == nullptr) return std::nullopt;
  if (entry->type != GgufValueType::kArray) fail_type(path, *entry, wanted);
  std::vector<T> values;
  values.reserve(entry->count);
  for (std::uint64_t i = 0; i < entry->count; ++i) {
    const std::optional<T> value = decode(entry->element_type, entry->data, i);
    if (!value) fail_type(path, *entry, wanted);
    values.push_back(*value);
  }
  return values;
}

}  // namespace

std::optional<std::int64_t> GgufFile::find_int(std::string_view key) const {
  return scalar(path(), find(key), "an integer below 2^63", gguf_int_at);
}

std::optional<double> GgufFile::find_float(std::string_view key) const {
  return scalar(path(), find(key), "a float", gguf_float_at);
}

std::optional<bool> GgufFile::find_bool(std::string_view key) const {
  const GgufEntry* entry = find(key);
  if (entry == nullptr) return std::nullopt;
  if (entry->type != GgufValueType::kBool) fail_type(path(), *entry, "a bool");
  return entry->data[0] != std::byte{0};
}

std::optional<std::string_view> GgufFile::find_string(std::string_view key) const {
  const GgufEntry* entry = find(key);
  if (entry == nullptr) return std::nullopt;
  if (entry->type != GgufValueType::kString) fail_type(path(), *entry, "a string");
  return gguf_string_at(entry->data, 0);
}

std::optional<std::vector<std::string_view>> GgufFile::find_string_array(std::string_view key) const {
  const GgufEntry* entry = find(key);
  std::size_t offset = 0;
  return array<std::string_view>(path(), entry, "an array of strings",
                                 [&offset](GgufValueType type, std::span<const std::byte> data,
                                           std::uint64_t) -> std::optional<std::string_view> {
                                   if (type != GgufValueType::kString) return std::nullopt;
                                   const std::string_view text = gguf_string_at(data, offset);
                                   offset += sizeof(std::uint64_t) + text.size();
                                   return text;
                                 });
}

std::optional<std::vector<std::int64_t>> GgufFile::find_int_array(std::string_view key) const {
  return array<std::int64_t>(path(), find(key), "an array of integers below 2^63", gguf_int_at);
}

std::optional<std::vector<double>> GgufFile::find_float_array(std::string_view key) const {
  return array<double>(path(), find(key), "an array of floats", gguf_float_at);
}

std::int64_t GgufFile::get_int(std::string_view key) const {
  const std::optional<std::int64_t> value = find_int(key);
  if (!value) fail_entry(path(), key, "is missing");
  return *value;
}

double GgufFile::get_float(std::string_view key) const {
  const std::optional<double> value = find_float(key);
  if (!value) fail_entry(path(), key, "is missing");
  return *value;
}

std::string_view GgufFile::get_string(std::string_view key) const {
  const std::optional<std::string_view> value = find_string(key);
  if (!value) fail_entry(path(), key, "is missing");
  return *value;
}

}  // namespace kvasir
