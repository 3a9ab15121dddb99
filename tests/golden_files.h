// Reading the data of independent implementations that lies in tests/data.
#ifndef KVASIR_TESTS_GOLDEN_FILES_H_
#define KVASIR_TESTS_GOLDEN_FILES_H_

#include <gtest/gtest.h>
#include <simdjson.h>

#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "formats/safetensors.h"
#include "kvasir/lab.h"
#include "kvasir/token.h"

namespace kvasir::testing {

inline std::string data_path(const std::string& name) { return std::string(KVASIR_TEST_DATA) + "/" + name; }

inline std::string read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in) << path;
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

template <class T>
std::vector<T> tensor_values(const SafetensorsFile& file, const std::string& name) {
  const SafetensorsTensor& tensor = file.tensor(name);
  std::vector<T> values(tensor.data.size() / sizeof(T));
  std::memcpy(values.data(), tensor.data.data(), tensor.data.size());
  return values;
}

inline StateDict read_state(const std::string& name) {
  const SafetensorsFile file = SafetensorsFile::open(data_path(name));
  StateDict state;
  for (const SafetensorsTensor& tensor : file.tensors()) {
    EXPECT_EQ(tensor.dtype, "F32");
    state[tensor.name] = {tensor.shape, tensor_values<float>(file, tensor.name)};
  }
  return state;
}

// A JSON array of ids, or of rows of ids (flattened).
inline std::vector<TokenId> read_ids(simdjson::dom::element element) {
  std::vector<TokenId> ids;
  for (const simdjson::dom::element item : element.get_array()) {
    if (item.is_array()) {
      const std::vector<TokenId> row = read_ids(item);
      ids.insert(ids.end(), row.begin(), row.end());
    } else {
      ids.push_back(static_cast<TokenId>(item.get_int64().value()));
    }
  }
  return ids;
}

// The default model, which script/bootstrap installs. A missing file is a failure, never a skipped test.
inline std::string default_model_path() {
  const auto environment = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value == nullptr ? "" : value);
  };
  if (!environment("KVASIR_MODEL").empty()) return environment("KVASIR_MODEL");
  const std::string data_home = environment("XDG_DATA_HOME");
  return (data_home.empty() ? environment("HOME") + "/.local/share" : data_home) +
         "/kvasir/models/SmolLM2-135M-Instruct.Q4_1.gguf";
}

}  // namespace kvasir::testing

#endif  // KVASIR_TESTS_GOLDEN_FILES_H_
