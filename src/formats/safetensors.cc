#include "formats/safetensors.h"

#include <fmt/format.h>
#include <simdjson.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>
#include <utility>

#include "formats/file_content.h"
#include "formats/name_index.h"
#include "formats/safetensors_layout.h"

namespace kvasir {

static_assert(std::endian::native == std::endian::little);

struct SafetensorsFile::State {
  std::string path;
  FileContent content;
  std::vector<SafetensorsTensor> tensors;
  std::map<std::string, std::string> metadata;
  NameIndex<SafetensorsTensor, &SafetensorsTensor::name> index;

  State(std::string name, FileContent bytes) : path(std::move(name)), content(std::move(bytes)) {}
  void parse();
};

namespace {

constexpr std::size_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the safetensors library

[[noreturn]] void fail_tensor(const std::string& path, std::string_view name, std::string_view problem) {
  throw_format_error(path, fmt::format("tensor {}", quoted_name(name)), problem);
}

struct PlacedTensor {
  SafetensorsTensor tensor;
  std::uint64_t begin = 0;  // byte offsets within the data section
  std::uint64_t end = 0;
};

std::span<const std::byte> header_of(const std::string& path, std::span<const std::byte> file) {
  if (file.size() < kLengthBytes) {
    throw_format_error(path, "header length", fmt::format("the file ends after {} of 8 bytes", file.size()));
  }
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), kLengthBytes);
  const std::uint64_t left = file.size() - kLengthBytes;
  if (length == 0) throw_format_error(path, "header length", "is 0");
  if (length > left) {
    throw_format_error(path, "header length", fmt::format("{} bytes, {} are left in the file", length, left));
  }
  if (length > kMaxHeaderBytes) {
    throw_format_error(path, "header length",
                       fmt::format("{} bytes, at most {} are allowed", length, kMaxHeaderBytes));
  }
  return file.subspan(kLengthBytes, length);
}

// The field's value as a list of numbers from 0 to 2^64-1.
std::vector<std::uint64_t> read_numbers(const std::string& path, std::string_view tensor,
                                        std::string_view field, simdjson::dom::element value) {
  simdjson::dom::array items;
  if (value.get(items) != simdjson::SUCCESS)
    fail_tensor(path, tensor, fmt::format("{} is not an array", field));
  std::vector<std::uint64_t> numbers;
  for (const simdjson::dom::element item : items) {
    std::uint64_t number = 0;
    if (item.get(number) != simdjson::SUCCESS) {
      fail_tensor(path, tensor, fmt::format("{} holds what is not a whole number of 0 or more", field));
    }
    numbers.push_back(number);
  }
  return numbers;
}

PlacedTensor read_tensor(const std::string& path, std::string_view name, simdjson::dom::element value) {
  simdjson::dom::object fields;
  if (value.get(fields) != simdjson::SUCCESS) fail_tensor(path, name, "is not a JSON object");
  std::optional<std::string_view> dtype;
  std::optional<std::vector<std::uint64_t>> shape;
  std::optional<std::vector<std::uint64_t>> offsets;
  for (const auto& [key, field] : fields) {
    const bool repeated =
        (key == "dtype" && dtype) || (key == "shape" && shape) || (key == "data_offsets" && offsets);
    if (repeated) fail_tensor(path, name, fmt::format("{} appears twice", key));
    if (key == "dtype") {
      std::string_view text;
      if (field.get(text) != simdjson::SUCCESS) fail_tensor(path, name, "dtype is not a string");
      dtype = text;
    } else if (key == "shape") {
      shape = read_numbers(path, name, key, field);
    } else if (key == "data_offsets") {
      offsets = read_numbers(path, name, key, field);
    }
  }
  if (!dtype) fail_tensor(path, name, "dtype is missing");
  if (!shape) fail_tensor(path, name, "shape is missing");
  if (!offsets) fail_tensor(path, name, "data_offsets is missing");
  if (offsets->size() != 2)
    fail_tensor(path, name, fmt::format("data_offsets has {} numbers, not 2", offsets->size()));
  return {{std::string(name), std::string(*dtype), *std::move(shape), {}}, (*offsets)[0], (*offsets)[1]};
}

std::map<std::string, std::string> read_metadata(const std::string& path, simdjson::dom::element value) {
  simdjson::dom::object fields;
  if (value.get(fields) != simdjson::SUCCESS)
    throw_format_error(path, "__metadata__", "is not a JSON object");
  std::map<std::string, std::string> metadata;
  for (const auto& [key, field] : fields) {
    std::string_view text;
    if (field.get(text) != simdjson::SUCCESS) {
      throw_format_error(path, "__metadata__",
                         fmt::format("the value of {} is not a string", quoted_name(key)));
    }
    if (!metadata.emplace(key, text).second) {
      throw_format_error(path, "__metadata__", fmt::format("{} appears twice", quoted_name(key)));
    }
  }
  return metadata;
}

// The tensors must lie one behind the other and fill the data section: what is neither is a broken file or
// one that hides something.
void require_seamless(const std::string& path, const std::vector<PlacedTensor>& sorted,
                      std::uint64_t data_bytes) {
  std::uint64_t expected = 0;
  for (const PlacedTensor& placed : sorted) {
    if (placed.begin != expected) {
      fail_tensor(
          path, placed.tensor.name,
          fmt::format("data_offsets begin at {}, {} the tensor before, which ends at {}", placed.begin,
                      placed.begin < expected ? "overlapping" : "with a hole after", expected));
    }
    expected = placed.end;
  }
  if (expected != data_bytes) {
    throw_format_error(path, "data",
                       fmt::format("{} bytes after the last tensor belong to none", data_bytes - expected));
  }
}

void require_good_span(const std::string& path, const PlacedTensor& placed, std::uint64_t data_bytes) {
  const SafetensorsTensor& tensor = placed.tensor;
  if (placed.begin > placed.end) {
    fail_tensor(path, tensor.name,
                fmt::format("data_offsets [{}, {}] are reversed", placed.begin, placed.end));
  }
  if (placed.end > data_bytes) {
    fail_tensor(
        path, tensor.name,
        fmt::format("data_offsets end at {}, beyond the file's {} bytes of data; the file may be cut off",
                    placed.end, data_bytes));
  }
  if (!safetensors_dtype_bits(tensor.dtype)) {
    fail_tensor(path, tensor.name, fmt::format("dtype {} is unknown", quoted_name(tensor.dtype)));
  }
  const std::optional<std::uint64_t> bytes = safetensors_bytes(tensor.dtype, tensor.shape);
  if (!bytes) fail_tensor(path, tensor.name, "shape does not make a number of bytes");
  if (*bytes != placed.end - placed.begin) {
    fail_tensor(path, tensor.name,
                fmt::format("shape needs {} bytes, data_offsets span {}", *bytes, placed.end - placed.begin));
  }
}

}  // namespace

void SafetensorsFile::State::parse() {
  const std::span<const std::byte> file = content.bytes();
  const std::span<const std::byte> header = header_of(path, file);
  const std::span<const std::byte> data = file.subspan(kLengthBytes + header.size());
  const simdjson::padded_string text(reinterpret_cast<const char*>(header.data()), header.size());
  simdjson::dom::parser parser;
  simdjson::dom::element root;
  if (const auto error = parser.parse(text).get(root); error != simdjson::SUCCESS) {
    throw_format_error(path, "header", fmt::format("not JSON: {}", simdjson::error_message(error)));
  }
  simdjson::dom::object fields;
  if (root.get(fields) != simdjson::SUCCESS) throw_format_error(path, "header", "not a JSON object");

  std::vector<PlacedTensor> placed;
  bool has_metadata = false;
  for (const auto& [key, value] : fields) {
    if (key == "__metadata__") {
      if (std::exchange(has_metadata, true)) throw_format_error(path, "__metadata__", "appears twice");
      metadata = read_metadata(path, value);
      continue;
    }
    placed.push_back(read_tensor(path, key, value));
    require_good_span(path, placed.back(), data.size());
  }
  std::stable_sort(placed.begin(), placed.end(), [](const PlacedTensor& a, const PlacedTensor& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  require_seamless(path, placed, data.size());
  for (PlacedTensor& item : placed) {
    item.tensor.data = data.subspan(item.begin, item.end - item.begin);
    tensors.push_back(std::move(item.tensor));
  }
  index.build(tensors);
  if (const SafetensorsTensor* tensor = index.duplicate()) fail_tensor(path, tensor->name, "appears twice");
}

SafetensorsFile::SafetensorsFile(std::unique_ptr<State> state) : state_(std::move(state)) {}
SafetensorsFile::~SafetensorsFile() = default;
SafetensorsFile::SafetensorsFile(SafetensorsFile&&) noexcept = default;
SafetensorsFile& SafetensorsFile::operator=(SafetensorsFile&&) noexcept = default;

SafetensorsFile SafetensorsFile::open(const std::string& path) {
  auto state = std::make_unique<State>(path, FileContent(MappedFile::open(path)));
  state->parse();
  return SafetensorsFile(std::move(state));
}

SafetensorsFile SafetensorsFile::parse(std::vector<std::byte> content, const std::string& name) {
  auto state = std::make_unique<State>(name, FileContent(std::move(content)));
  state->parse();
  return SafetensorsFile(std::move(state));
}

const std::string& SafetensorsFile::path() const { return state_->path; }
const std::vector<SafetensorsTensor>& SafetensorsFile::tensors() const { return state_->tensors; }
const std::map<std::string, std::string>& SafetensorsFile::metadata() const { return state_->metadata; }

const SafetensorsTensor* SafetensorsFile::find_tensor(std::string_view name) const {
  return state_->index.find(name);
}

const SafetensorsTensor& SafetensorsFile::tensor(std::string_view name) const {
  const SafetensorsTensor* tensor = find_tensor(name);
  if (tensor == nullptr) fail_tensor(path(), name, "is missing");
  return *tensor;
}

}  // namespace kvasir
