#include "base/json_writer.h"

#include <array>
#include <charconv>
#include <cmath>

#include "base/utf8.h"

namespace kvasir {
namespace {

void append_quoted(std::string& out, std::string_view text) {
  constexpr std::string_view kHex = "0123456789abcdef";
  out += '"';
  for (const char c : replace_invalid_utf8(text)) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\r':
        out += "\\r";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        if (const auto byte = static_cast<unsigned char>(c); byte < 0x20) {
          out += "\\u00";
          out += kHex[byte >> 4];
          out += kHex[byte & 0xf];
        } else {
          out += c;
        }
    }
  }
  out += '"';
}

template <class Float>
std::string float_text(Float number) {
  if (!std::isfinite(number)) return "null";
  std::array<char, 32> buffer =
      {};  // the longest shortest double, -2.2250738585072014e-308, has 24 characters
  const auto result = std::to_chars(buffer.data(), buffer.data() + buffer.size(), number);
  return std::string(buffer.data(), result.ptr);
}

}  // namespace

void JsonWriter::separate() {
  if (after_key_) {
    after_key_ = false;
    return;
  }
  if (has_items_.empty()) return;
  if (has_items_.back()) text_ += ',';
  has_items_.back() = true;
}

JsonWriter& JsonWriter::raw(std::string_view text) {
  separate();
  text_ += text;
  return *this;
}

JsonWriter& JsonWriter::begin_object() {
  raw("{");
  has_items_.push_back(false);
  return *this;
}

JsonWriter& JsonWriter::end_object() {
  has_items_.pop_back();
  text_ += '}';
  return *this;
}

JsonWriter& JsonWriter::begin_array() {
  raw("[");
  has_items_.push_back(false);
  return *this;
}

JsonWriter& JsonWriter::end_array() {
  has_items_.pop_back();
  text_ += ']';
  return *this;
}

JsonWriter& JsonWriter::key(std::string_view name) {
  separate();
  append_quoted(text_, name);
  text_ += ':';
  after_key_ = true;
  return *this;
}

JsonWriter& JsonWriter::value(std::string_view text) {
  separate();
  append_quoted(text_, text);
  return *this;
}

JsonWriter& JsonWriter::value(bool flag) { return raw(flag ? "true" : "false"); }
JsonWriter& JsonWriter::value(double number) { return raw(float_text(number)); }
JsonWriter& JsonWriter::value(float number) { return raw(float_text(number)); }
JsonWriter& JsonWriter::null() { return raw("null"); }

}  // namespace kvasir
