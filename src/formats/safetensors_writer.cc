#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <set>
#include <utility>

#include "base/json_writer.h"
#include "base/utf8.h"
#include "formats/file_content.h"
#include "formats/safetensors.h"
#include "formats/safetensors_layout.h"
#include "kvasir/error.h"

namespace kvasir {
namespace {

// A file that is being written beside its final place, and is gone unless it is published.
class NewFile {
 public:
  explicit NewFile(std::string path) : path_(std::move(path)) {
    struct stat status = {};
    if (::stat(path_.c_str(), &status) == 0 && !S_ISREG(status.st_mode)) {
      throw Error(ErrorKind::kIo,
                  fmt::format("{}: exists and is not a regular file; choose another name", path_));
    }
    static std::atomic<unsigned> counter = 0;
    temporary_ = fmt::format("{}.{}-{}.tmp", path_, ::getpid(), counter++);
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd_ < 0) fail("create the file");
  }
  NewFile(const NewFile&) = delete;
  NewFile& operator=(const NewFile&) = delete;
  ~NewFile() {
    if (fd_ >= 0) ::close(fd_);
    if (!temporary_.empty()) ::unlink(temporary_.c_str());
  }

  void write(std::span<const std::byte> bytes) {
    while (!bytes.empty()) {
      const ssize_t written = ::write(fd_, bytes.data(), bytes.size());
      if (written < 0) {
        if (errno == EINTR) continue;
        fail("write the file");
      }
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    }
  }

  void publish() {
    if (::fsync(fd_) != 0) fail("write the file");
    if (::close(std::exchange(fd_, -1)) != 0) fail("write the file");
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail("rename the finished file");
    temporary_.clear();
  }

 private:
  [[noreturn]] void fail(const char* action) const {
    throw Error(ErrorKind::kIo, fmt::format("{}: cannot {}: {}", path_, action, std::strerror(errno)));
  }

  std::string path_;
  std::string temporary_;
  int fd_ = -1;
};

void require_writable(const std::string& path, const std::vector<SafetensorsTensor>& tensors) {
  std::set<std::string_view> names;
  for (const SafetensorsTensor& tensor : tensors) {
    const auto refuse = [&](std::string_view problem) {
      throw Error(ErrorKind::kInvalidArgument,
                  fmt::format("{}: tensor {}: {}", path, quoted_name(tensor.name), problem));
    };
    if (!is_valid_utf8(tensor.name)) refuse("the name is not UTF-8");
    if (tensor.name == "__metadata__") refuse("the name is reserved");
    if (!names.insert(tensor.name).second) refuse("appears twice");
    if (!safetensors_dtype_bits(tensor.dtype))
      refuse(fmt::format("dtype {} is unknown", quoted_name(tensor.dtype)));
    if (safetensors_bytes(tensor.dtype, tensor.shape) != tensor.data.size()) {
      refuse(fmt::format("its {} bytes do not match dtype and shape", tensor.data.size()));
    }
  }
}

std::string header_text(const std::vector<SafetensorsTensor>& tensors,
                        const std::map<std::string, std::string>& metadata) {
  JsonWriter json;
  json.begin_object();
  if (!metadata.empty()) {
    json.key("__metadata__").begin_object();
    for (const auto& [key, value] : metadata) json.field(key, value);
    json.end_object();
  }
  std::uint64_t offset = 0;
  for (const SafetensorsTensor& tensor : tensors) {
    json.key(tensor.name).begin_object().field("dtype", tensor.dtype).key("shape").begin_array();
    for (const std::uint64_t size : tensor.shape) json.value(size);
    json.end_array()
        .key("data_offsets")
        .begin_array()
        .value(offset)
        .value(offset + tensor.data.size())
        .end_array();
    json.end_object();
    offset += tensor.data.size();
  }
  json.end_object();
  // Spaces are allowed at the end, and bring the data to a multiple of 8 bytes, which the specification asks
  // for.
  std::string text = json.text();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  return text;
}

}  // namespace

void write_safetensors(const std::string& path, const std::vector<SafetensorsTensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  require_writable(path, tensors);
  const std::string header = header_text(tensors, metadata);
  const std::uint64_t header_bytes = header.size();
  NewFile file(path);
  file.write(std::as_bytes(std::span(&header_bytes, 1)));
  file.write(std::as_bytes(std::span(header)));
  for (const SafetensorsTensor& tensor : tensors) file.write(tensor.data);
  file.publish();
}

}  // namespace kvasir
