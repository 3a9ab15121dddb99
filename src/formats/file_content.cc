#include "formats/file_content.h"

#include <fmt/format.h>

#include "base/utf8.h"
#include "kvasir/error.h"

namespace kvasir {

std::string quoted_name(std::string_view name) {
  constexpr std::size_t kMaxShownBytes = 80;
  const std::string_view shown = name.substr(0, kMaxShownBytes);
  std::string text = "'";
  for (const char c : replace_invalid_utf8(shown)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7f) {
      text += fmt::format("\\x{:02x}", byte);
    } else {
      text += c;
    }
  }
  text += shown.size() < name.size() ? "...'" : "'";
  return text;
}

void throw_format_error(std::string_view path, std::string_view where, std::string_view problem) {
  throw Error(ErrorKind::kFormat, fmt::format("{}: {}: {}", path, where, problem));
}

}  // namespace kvasir
