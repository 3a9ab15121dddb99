// The instructions for AMX tiles. Tiles are named by number, and the compiler, which uses none itself, need
// not know of them.
#ifndef KVASIR_KERNELS_AVX512_TILES_H_
#define KVASIR_KERNELS_AVX512_TILES_H_

#include <cstddef>
#include <cstdint>

namespace kvasir::kernels {

inline constexpr int kTileRows = 16;
inline constexpr int kTileRowBytes = 64;

// Configures this thread's tiles while it lives; they start as zeros.
class Tiles {
 public:
  struct Shape {
    int rows;
    int row_bytes;
  };

  template <std::size_t n>
  explicit Tiles(const Shape (&shapes)[n]) {
    static_assert(n <= 8);
    Configuration configuration;
    for (std::size_t i = 0; i < n; ++i) {
      configuration.rows[i] = static_cast<std::uint8_t>(shapes[i].rows);
      configuration.row_bytes[i] = static_cast<std::uint16_t>(shapes[i].row_bytes);
    }
    asm volatile("ldtilecfg %0" : : "m"(configuration));
  }
  ~Tiles() { asm volatile("tilerelease"); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;

 private:
  struct Configuration {  // as the instruction reads it
    std::uint8_t palette = 1;
    std::uint8_t start_row = 0;
    std::uint8_t reserved[14] = {};
    std::uint16_t row_bytes[16] = {};
    std::uint8_t rows[16] = {};
  };
  static_assert(sizeof(Configuration) == 64);
};

template <int kTile>
void zero_tile() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
}

// stride: bytes from one row to the next.
template <int kTile>
void load_tile(const void* rows, std::ptrdiff_t stride) {
  asm volatile("tileloadd (%1,%2,1), %%tmm%c0" : : "i"(kTile), "r"(rows), "r"(stride) : "memory");
}

template <int kTile>
void store_tile(void* rows, std::ptrdiff_t stride) {
  asm volatile("tilestored %%tmm%c0, (%1,%2,1)" : : "i"(kTile), "r"(rows), "r"(stride) : "memory");
}

// sums [m][n] += a [m][4 k] * b [k][4 n], signed bytes, four neighbours of each at a time; exact.
template <int kSums, int kA, int kB>
void multiply_tiles() {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kSums), "i"(kA), "i"(kB));
}

}  // namespace kvasir::kernels

#endif  // KVASIR_KERNELS_AVX512_TILES_H_
