// What is packed can be had back: the same numbers as the stored weights give.
#include "kernels/packed_matrix.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/half.h"

namespace kvasir::kernels {
namespace {

constexpr TensorType kTypes[] = {TensorType::kF32,  TensorType::kF16,  TensorType::kBF16, TensorType::kQ8_0,
                                 TensorType::kQ4_0, TensorType::kQ4_1, TensorType::kQ5_0, TensorType::kQ5_1,
                                 TensorType::kQ4_K, TensorType::kQ5_K, TensorType::kQ6_K};

std::vector<std::byte> random_bytes(std::mt19937& random, std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::byte& b : bytes) b = static_cast<std::byte>(random());
  return bytes;
}

std::size_t row_bytes(TensorType type, std::int64_t k) {
  const TensorTypeInfo& info = tensor_type_info(type);
  return static_cast<std::size_t>(k) / info.block_values * info.block_bytes;
}

class PackedMatrixTest : public ::testing::Test {
 protected:
  MemoryArena memory_;
};

bool same(float a, float b) { return a == b || (std::isnan(a) && std::isnan(b)); }

// Random bytes are valid blocks of every type: all scales and quants occur.
TEST_F(PackedMatrixTest, GivesBackEveryBlockAsItWasStored) {
  std::mt19937 random(20261130);
  for (const TensorType type : kTypes) {
    if (input_kind(type) != InputKind::kInt8) continue;
    const TensorTypeInfo& info = tensor_type_info(type);
    for (const std::int64_t blocks : {1, 3, 8, 11}) {
      const std::int64_t n = 21, k = blocks * static_cast<std::int64_t>(info.block_values);
      const std::vector<std::byte> stored =
          random_bytes(random, static_cast<std::size_t>(n) * row_bytes(type, k));
      PackedMatrix matrix = make_packed_matrix(type, n, k, Activations::kDefault, memory_);
      for (std::int64_t panel = 0; panel < matrix.panels(); ++panel) {
        pack_panel(matrix, type, stored.data(), panel);
      }
      for (std::int64_t output = 0; output < n; ++output) {
        for (std::int64_t b = 0; b < blocks; ++b) {
          QuantBlock expected{}, got{};
          unpack_block(type, stored.data() + static_cast<std::size_t>(output * blocks + b) * info.block_bytes,
                       expected);
          unpack_packed_block(matrix, output, b, got);
          ASSERT_TRUE(same(got.d, expected.d) && same(got.dmin, expected.dmin)) << info.name;
          for (std::size_t i = 0; i < info.block_values; ++i) {
            ASSERT_EQ(got.quants[i], expected.quants[i]) << info.name << " value " << i;
          }
          ASSERT_EQ(std::memcmp(got.sub_scales, expected.sub_scales, sizeof got.sub_scales), 0) << info.name;
          ASSERT_EQ(std::memcmp(got.sub_mins, expected.sub_mins, sizeof got.sub_mins), 0) << info.name;
        }
      }
    }
  }
}

TEST_F(PackedMatrixTest, GivesBackTheWeightsOfAnOutput) {
  std::mt19937 random(20261201);
  for (const TensorType type : kTypes) {
    for (const Activations activations : {Activations::kDefault, Activations::kF32}) {
      const std::int64_t n = 18, k = tensor_type_info(type).block_values == 1 ? 259 : 512;
      const std::vector<std::byte> stored =
          random_bytes(random, static_cast<std::size_t>(n) * row_bytes(type, k));
      PackedMatrix matrix = make_packed_matrix(type, n, k, activations, memory_);
      for (std::int64_t panel = 0; panel < matrix.panels(); ++panel) {
        pack_panel(matrix, type, stored.data(), panel);
      }
      std::vector<float> expected(static_cast<std::size_t>(k)), got(expected.size());
      for (std::int64_t output = 0; output < n; ++output) {
        dequantize(type, stored.data() + static_cast<std::size_t>(output) * row_bytes(type, k), expected);
        dequantize_output(matrix, output, got);
        for (std::size_t i = 0; i < expected.size(); ++i) {
          const bool flushed = matrix.type == TensorType::kBF16 && std::fabs(expected[i]) < 0x1p-48F;
          ASSERT_TRUE(same(got[i], flushed ? 0.0F : expected[i])) << tensor_type_info(type).name << " " << i;
        }
      }
    }
  }
}

TEST_F(PackedMatrixTest, IsHardlyLargerThanTheFile) {
  for (const TensorType type : kTypes) {
    for (const std::int64_t k : {576, 1536, 2048}) {
      if (k % static_cast<std::int64_t>(tensor_type_info(type).block_values) != 0) continue;
      const PackedMatrix matrix = make_packed_matrix(type, 256, k, Activations::kDefault, memory_);
      EXPECT_LE(static_cast<double>(matrix.nbytes()), 1.05 * 256.0 * static_cast<double>(row_bytes(type, k)))
          << tensor_type_info(type).name << " k=" << k;
    }
  }
}

}  // namespace
}  // namespace kvasir::kernels
