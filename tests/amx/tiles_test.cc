// That a test with the emulator does use tiles, and what their instructions compute.
#include "kernels/avx512/tiles.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <random>
#include <string>
#include <tuple>

#include "kernels/kernels.h"

namespace kvasir::kernels {
namespace {

TEST(Tiles, AreThereWhereTheOtherInstructionsAre) {
  std::string names;
  for (const KernelSet* set : available_kernels()) names += std::string(" ") + set->name;
  EXPECT_EQ(names.find(" avx512bf16") != names.npos, names.ends_with(" amx")) << names;
}

TEST(Tiles, MultiplySignedBytesOfAnyShape) {
  if (available_kernels().back()->name != std::string("amx")) return;  // nobody computes tiles
  std::mt19937 random(20261201);
  for (const auto& [rows, words, columns] :
       {std::tuple(16, 16, 16), {16, 8, 16}, {16, 4, 16}, {1, 1, 1}, {5, 3, 7}}) {
    std::int8_t a[16][64], b[16][64];
    for (auto& row : a) {
      for (std::int8_t& value : row) value = static_cast<std::int8_t>(random());
    }
    for (auto& row : b) {
      for (std::int8_t& value : row) value = static_cast<std::int8_t>(random());
    }
    std::int32_t sums[16][16], twice[16][16];
    for (auto& row : sums) std::fill(std::begin(row), std::end(row), 7);
    for (auto& row : twice) std::fill(std::begin(row), std::end(row), 7);
    {
      const Tiles tiles({{rows, 4 * columns}, {rows, 4 * words}, {words, 4 * columns}});
      load_tile<0>(sums, sizeof sums[0]);
      load_tile<1>(a, sizeof a[0]);
      load_tile<2>(b, sizeof b[0]);
      zero_tile<0>();
      multiply_tiles<0, 1, 2>();
      store_tile<0>(sums, sizeof sums[0]);
      multiply_tiles<0, 1, 2>();
      store_tile<0>(twice, sizeof twice[0]);
    }
    for (int m = 0; m < 16; ++m) {
      for (int n = 0; n < 16; ++n) {
        const bool inside = m < rows && n < columns;
        std::int32_t product = 0;
        for (int k = 0; k < 4 * words; ++k) product += a[m][k] * b[k / 4][4 * n + k % 4];
        EXPECT_EQ(sums[m][n], inside ? product : 7) << rows << " x " << words << " x " << columns;
        EXPECT_EQ(twice[m][n], inside ? 2 * product : 7) << rows << " x " << words << " x " << columns;
      }
    }
  }
}

}  // namespace
}  // namespace kvasir::kernels
