// What several tests of this room share.
#ifndef KVASIR_TEXT_TEST_DATA_H_
#define KVASIR_TEXT_TEST_DATA_H_

#include <simdjson.h>
#include <time.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "formats/gguf.h"
#include "kvasir/tokenizer.h"

namespace kvasir {

inline std::string test_data_path(const std::string& name) {
  return std::string(KVASIR_TEST_DATA) + "/" + name;
}

// The model whose tokenizer the reference ids belong to.
inline std::string smollm2_path() {
  const auto variable = [](const char* name) -> std::string {
    const char* value = std::getenv(name);
    return value ? value : "";
  };
  if (std::string model = variable("KVASIR_MODEL"); !model.empty()) return model;
  std::string data_home = variable("XDG_DATA_HOME");
  if (data_home.empty()) data_home = variable("HOME") + "/.local/share";
  return data_home + "/kvasir/models/SmolLM2-135M-Instruct.Q4_1.gguf";
}

inline const GgufFile& smollm2_file() {
  static const GgufFile file = GgufFile::open(smollm2_path());
  return file;
}

inline const Tokenizer& smollm2_tokenizer() {
  static const Tokenizer tokenizer(tokenizer_data_from_gguf(smollm2_file()));
  return tokenizer;
}

// Calls visit(element) for each line of a file of JSON values; returns how many there were.
template <class Visit>
std::size_t for_each_json_line(const std::string& name, const Visit& visit) {
  simdjson::dom::parser parser;
  std::size_t lines = 0;
  for (simdjson::dom::element element : parser.load_many(test_data_path(name))) {
    visit(element);
    ++lines;
  }
  return lines;
}

inline std::string json_string(simdjson::dom::element element) {
  return std::string(element.get_string().value());
}

inline std::vector<TokenId> json_ids(simdjson::dom::element element) {
  std::vector<TokenId> ids;
  for (const simdjson::dom::element id : element.get_array())
    ids.push_back(static_cast<TokenId>(id.get_int64().value()));
  return ids;
}

// Time that this thread has computed: unlike a clock on the wall, other programs do not add to it.
inline double thread_cpu_seconds() {
  timespec time{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

inline std::string from_hex(std::string_view hex) {
  std::string bytes;
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes += static_cast<char>(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  }
  return bytes;
}

}  // namespace kvasir

#endif  // KVASIR_TEXT_TEST_DATA_H_
