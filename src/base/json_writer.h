// Builds one JSON document as text. Strings are made valid UTF-8 (U+FFFD) and escaped; doubles are the
// shortest text that reads back to the same value; infinities and NaN become null.
#ifndef KVASIR_BASE_JSON_WRITER_H_
#define KVASIR_BASE_JSON_WRITER_H_

#include <concepts>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir {

// JsonWriter json; json.begin_object().key("n").value(3).end_object(); json.text();
class JsonWriter {
 public:
  JsonWriter& begin_object();
  JsonWriter& end_object();
  JsonWriter& begin_array();
  JsonWriter& end_array();
  JsonWriter& key(std::string_view name);
  JsonWriter& value(std::string_view text);
  JsonWriter& value(const char* text) { return value(std::string_view(text)); }
  JsonWriter& value(const std::string& text) { return value(std::string_view(text)); }
  JsonWriter& value(bool flag);
  JsonWriter& value(double number);
  JsonWriter& value(float number);
  template <std::integral T>
  requires(!std::same_as<T, bool>) JsonWriter& value(T number) { return raw(std::to_string(number)); }
  JsonWriter& null();
  // key(name).value(v)
  template <class T>
  JsonWriter& field(std::string_view name, const T& v) {
    return key(name).value(v);
  }
  const std::string& text() const { return text_; }

 private:
  JsonWriter& raw(std::string_view text);
  void separate();
  std::string text_;
  std::vector<bool> has_items_;  // for each open container
  bool after_key_ = false;
};

}  // namespace kvasir

#endif  // KVASIR_BASE_JSON_WRITER_H_
