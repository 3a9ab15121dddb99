#include "kernels/dequantize.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace kvasir::kernels {
namespace {

std::vector<std::byte> read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in) << path;
  const std::vector<char> chars((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  std::vector<std::byte> bytes(chars.size());
  std::memcpy(bytes.data(), chars.data(), chars.size());
  return bytes;
}

const TensorType kStoredTypes[] = {TensorType::kF16,  TensorType::kBF16, TensorType::kQ8_0, TensorType::kQ4_0,
                                   TensorType::kQ4_1, TensorType::kQ5_0, TensorType::kQ5_1, TensorType::kQ4_K,
                                   TensorType::kQ5_K, TensorType::kQ6_K};

struct Golden {
  std::vector<std::byte> blocks;
  std::vector<float> values;
};

Golden read_golden(TensorType type) {
  const std::string base =
      std::string(KVASIR_TEST_DATA) + "/quants/" + std::string(tensor_type_info(type).name);
  Golden golden{read_file(base + ".blocks"), {}};
  const std::vector<std::byte> values = read_file(base + ".f32");
  golden.values.resize(values.size() / sizeof(float));
  std::memcpy(golden.values.data(), values.data(), values.size());
  EXPECT_GE(golden.values.size(), 512U);
  return golden;
}

TEST(Dequantize, EqualsTheIndependentImplementationBitForBit) {
  for (const TensorType type : kStoredTypes) {
    const Golden golden = read_golden(type);
    std::vector<float> got(golden.values.size());
    dequantize(type, golden.blocks.data(), got);
    EXPECT_EQ(std::memcmp(got.data(), golden.values.data(), got.size() * sizeof(float)), 0)
        << tensor_type_info(type).name;
  }
}

}  // namespace
}  // namespace kvasir::kernels
