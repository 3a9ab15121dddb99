// Linear layers over 16 lanes (the outputs of a panel). Included inside the target region and namespace of
// one instruction set, after its vector.h and the types of its integer products.
//
// A tile is R rows times P panels, in registers, over one segment. The compiler keeps it in registers only if
// it unrolls the loops over r and p early, which it must be told (not with sanitizers, where it takes
// minutes).
//
// Floats are used as they are packed. Quants of less than 8 bits, too, by few rows; many rows share quants
// that were widened once into memory that the first-level cache holds. Both run the same tile.
//
// Processors themselves fetch too little ahead of tiles with many rows: while panels are computed, those that
// follow in memory (of this matrix, or of the one that is likely to be next) are fetched, evenly.

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define KVASIR_UNROLLED
#else
#define KVASIR_UNROLLED _Pragma("GCC unroll 16")
#endif

inline constexpr std::int64_t kRowChunk = 120;  // rows that share widened quants

// Into the second-level cache: more loads may be under way there.
inline void fetch_line(const std::byte* p) {
  constexpr int kRead = 0, kSecondLevel = 2;
  __builtin_prefetch(p, kRead, kSecondLevel);
}

// Calls fn with the integral constant n, which must be in [kLow, kHigh].
template <int kLow, int kHigh, class Fn>
void with_constant(std::int64_t n, Fn fn) {
  if constexpr (kLow < kHigh) {
    if (n > kLow) return with_constant<kLow + 1, kHigh>(n, fn);
  }
  fn(std::integral_constant<int, kLow>{});
}

// Cuts [0, rows) into tiles of nearly equal size, at most kMax rows each: fn(first row, constant size). The
// caller knows that none is smaller than kMin.
template <int kMin, int kMax, class Fn>
void for_each_row_tile(std::int64_t rows, Fn fn) {
  std::int64_t tiles = (rows + kMax - 1) / kMax;
  for (std::int64_t row = 0; tiles > 0; --tiles) {
    const std::int64_t size = (rows - row + tiles - 1) / tiles;
    with_constant<kMin, kMax>(size, [&](auto r) { fn(row, r); });
    row += size;
  }
}

// The smallest tile that from `low` to `high` rows are cut into.
constexpr int smallest_tile(std::int64_t low, std::int64_t high, std::int64_t max_rows) {
  std::int64_t smallest = max_rows;
  for (std::int64_t rows = low; rows <= high; ++rows) {
    smallest = std::min(smallest, rows / ((rows + max_rows - 1) / max_rows));
  }
  return static_cast<int>(smallest);
}

// Outputs of P panels from totals [rows][P][16].
template <int P>
void store_outputs(const PackedMatrix& w, std::int64_t panel, std::int64_t rows, const float* totals,
                   float* y, std::int64_t y_stride) {
  y += panel * kPanel;
  const std::int64_t count = std::min(P * kPanel, w.n - panel * kPanel);
  for (std::int64_t row = 0; row < rows; ++row, y += y_stride, totals += P * kPanel) {
    if (count < P * kPanel) {
      std::memcpy(y, totals, static_cast<std::size_t>(count) * sizeof(float));
    } else {
      KVASIR_UNROLLED
      for (int p = 0; p < P; ++p) F32x16::load(totals + p * kPanel).store(y + p * kPanel);
    }
  }
}

// The places of the outputs, so that storing to them later waits for nothing.
template <int P>
void fetch_outputs(std::int64_t panel, std::int64_t rows, const float* y, std::int64_t y_stride) {
  constexpr int kWrite = 1, kSecondLevel = 2;
  y += panel * kPanel;
  for (std::int64_t row = 0; row < rows; ++row, y += y_stride) {
    for (int p = 0; p < P; ++p) __builtin_prefetch(y + p * kPanel, kWrite, kSecondLevel);
  }
}

// The first segment's sum is assigned, so that a sum of -0 stays -0.
inline void add_segment(bool first, F32x16 sum, float* total) {
  (first ? sum : F32x16::load(total) + sum).store(total);
}

// ---- Float weights

// What follows P panels of floats: a line of each at every column.
template <int P>
struct ColumnsAhead {
  const std::byte* next;
  std::size_t panel_bytes;
  std::size_t step;  // in bytes: lines may come several times

  // rows: in tiles of at most max_rows.
  ColumnsAhead(const PackedMatrix& w, std::int64_t panel, std::int64_t rows, std::int64_t max_rows)
      : next(w.at(panel + P, 0)), panel_bytes(w.panel_bytes) {
    const std::int64_t columns = w.type == TensorType::kBF16 ? (w.k + 1) / 2 : w.k;
    const auto steps = static_cast<std::size_t>((rows + max_rows - 1) / max_rows * columns);
    step = (panel_bytes + steps - 1) / steps;
    // The processor sees one stream, with little to do for each byte, and does it better.
    if (rows <= 4 && w.type != TensorType::kF16) panel_bytes = step = 0;
  }
  void fetch() {
    KVASIR_UNROLLED
    for (int p = 0; p < P; ++p) {
      fetch_line(next + static_cast<std::size_t>(p) * panel_bytes);
    }
    next += step;
  }
};

struct F32Columns {  // [inputs][16]
  const std::byte* columns;
  F32x16 operator()(std::int64_t i) const {
    return F32x16::load(reinterpret_cast<const float*>(columns) + i * kPanel);
  }
};

struct F16Columns {
  const std::byte* columns;
  F32x16 operator()(std::int64_t i) const {
    return F32x16::load_half(reinterpret_cast<const std::uint16_t*>(columns) + i * kPanel);
  }
};

struct BF16Columns {  // pairs: [inputs / 2][16]
  const std::byte* columns;
  F32x16 operator()(std::int64_t i) const {
    const auto* pairs = reinterpret_cast<const std::uint32_t*>(columns) + i / 2 * kPanel;
    return i % 2 == 0 ? F32x16::high_halves(pairs) : F32x16::low_halves(pairs);
  }
};

template <TensorType kType>
using ColumnsOf = std::conditional_t<kType == TensorType::kF32, F32Columns,
                                     std::conditional_t<kType == TensorType::kF16, F16Columns, BF16Columns>>;

// x: R rows of x_stride; totals: [R][P][16].
template <int R, int P, class Columns>
void float_tile(const Columns (&w)[P], const float* x, std::int64_t x_stride, std::int64_t inputs, bool first,
                float* totals, ColumnsAhead<P>& all_ahead) {
  ColumnsAhead<P> ahead = all_ahead;  // in registers
  F32x16 sums[R][P];
  KVASIR_UNROLLED
  for (int r = 0; r < R; ++r) {
    KVASIR_UNROLLED
    for (int p = 0; p < P; ++p) sums[r][p] = F32x16::zero();
  }
#pragma GCC unroll 2
  for (std::int64_t i = 0; i < inputs; ++i) {
    if constexpr (R > 1) ahead.fetch();
    F32x16 columns[P];
    KVASIR_UNROLLED
    for (int p = 0; p < P; ++p) columns[p] = w[p](i);
    KVASIR_UNROLLED
    for (int r = 0; r < R; ++r) {
      const F32x16 input = F32x16::all(x[r * x_stride + i]);
      KVASIR_UNROLLED
      for (int p = 0; p < P; ++p) sums[r][p] = fma(input, columns[p], sums[r][p]);
    }
  }
  all_ahead = ahead;
  KVASIR_UNROLLED
  for (int r = 0; r < R; ++r) {
    KVASIR_UNROLLED
    for (int p = 0; p < P; ++p) add_segment(first, sums[r][p], totals + (r * P + p) * kPanel);
  }
}

// The floats that the rounded inputs [0, inputs) of some rows are, [rows][kSegment]. Not inlined: the
// compiler vectorizes it by itself, but not in every context.
[[gnu::noinline]] inline void widen_bf16(const std::uint32_t* pairs, std::int64_t pair_stride,
                                         std::int64_t rows, std::int64_t inputs, float* x) {
  for (std::int64_t r = 0; r < rows; ++r, pairs += pair_stride, x += kSegment) {
    for (std::int64_t i = 0; i < (inputs + 1) / 2; ++i) {
      x[2 * i] = bf16_of_pair(pairs[i], 0);
      x[2 * i + 1] = bf16_of_pair(pairs[i], 1);
    }
  }
}

// P panels from `panel` on, for at most kRowChunk rows.
template <TensorType kType, int P, int kMaxRows>
void float_panels(const PackedMatrix& w, std::int64_t panel, const InputRows& x, std::int64_t rows, float* y,
                  std::int64_t y_stride) {
  alignas(64) float totals[kRowChunk * P * kPanel];
  ColumnsAhead<P> ahead(w, panel, rows, kMaxRows);
  for (std::int64_t segment = 0; segment < w.segments(); ++segment) {
    const std::int64_t begin = segment * kSegment, inputs = w.segment_inputs(segment);
    ColumnsOf<kType> columns[P];
    for (int p = 0; p < P; ++p) columns[p] = {w.at(panel + p, segment)};
    for_each_row_tile<1, kMaxRows>(rows, [&](std::int64_t row, auto r) {
      constexpr int kRows = decltype(r)::value;
      float* out = totals + row * P * kPanel;
      if constexpr (kType == TensorType::kBF16) {
        float widened[kRows * kSegment];
        const std::int64_t pairs = (x.k + 1) / 2;
        widen_bf16(x.pairs + row * pairs + begin / 2, pairs, kRows, inputs, widened);
        float_tile<kRows, P>(columns, widened, kSegment, inputs, segment == 0, out, ahead);
      } else {
        float_tile<kRows, P>(columns, x.floats + row * x.k + begin, x.k, inputs, segment == 0, out, ahead);
      }
    });
  }
  store_outputs<P>(w, panel, rows, totals, y, y_stride);
}

template <TensorType kType>
void linear_floats(const PackedMatrix& w, std::int64_t panel_begin, std::int64_t panel_end,
                   const InputRows& x, std::int64_t rows, float* y, std::int64_t y_stride) {
  std::int64_t panel = panel_begin;
  if (rows == 1) {
    for (; panel + kOneRowPanels <= panel_end; panel += kOneRowPanels) {
      float_panels<kType, kOneRowPanels, 1>(w, panel, x, rows, y, y_stride);
    }
  }
  for (; panel + kFloatPanels <= panel_end; panel += kFloatPanels) {
    float_panels<kType, kFloatPanels, kFloatRows>(w, panel, x, rows, y, y_stride);
  }
  for (; panel < panel_end; ++panel) float_panels<kType, 1, kFloatRows>(w, panel, x, rows, y, y_stride);
}

// ---- Block-quantized weights

template <TensorType kType>
struct Quant {
  static constexpr QuantFormat kFormat = quant_format(kType);
  static constexpr int kBits = kFormat.bits, kZero = kFormat.zero_point, kSubScales = kFormat.sub_scales;
  static constexpr bool kMins = kFormat.mins;
};

// Calls fn with one of the block-quantized types as a constant.
template <class Fn>
void with_quant_type(TensorType type, Fn fn) {
  switch (type) {
    case TensorType::kQ8_0:
      return fn(std::integral_constant<TensorType, TensorType::kQ8_0>{});
    case TensorType::kQ4_0:
      return fn(std::integral_constant<TensorType, TensorType::kQ4_0>{});
    case TensorType::kQ4_1:
      return fn(std::integral_constant<TensorType, TensorType::kQ4_1>{});
    case TensorType::kQ5_0:
      return fn(std::integral_constant<TensorType, TensorType::kQ5_0>{});
    case TensorType::kQ5_1:
      return fn(std::integral_constant<TensorType, TensorType::kQ5_1>{});
    case TensorType::kQ4_K:
      return fn(std::integral_constant<TensorType, TensorType::kQ4_K>{});
    case TensorType::kQ5_K:
      return fn(std::integral_constant<TensorType, TensorType::kQ5_K>{});
    case TensorType::kQ6_K:
      return fn(std::integral_constant<TensorType, TensorType::kQ6_K>{});
    case TensorType::kF32:
    case TensorType::kF16:
    case TensorType::kBF16:
      break;
  }
}

// What follows some panels of quants: some lines at every block.
class BlocksAhead {
 public:
  BlocksAhead(const PackedMatrix& w, std::int64_t panel, int panels, std::int64_t tiles)
      : next_(w.at(panel + panels, 0)), end_(w.at(panel + 2 * panels, 0)) {
    const std::int64_t steps = tiles * (w.k / kQuantBlock);
    step_ = ((end_ - next_) / kLine + steps - 1) / steps * kLine;
  }
  void fetch() {
    const std::byte* const step_end = std::min(next_ + step_, end_);
    for (; next_ < step_end; next_ += kLine) fetch_line(next_);
  }

 private:
  static constexpr std::ptrdiff_t kLine = 64;
  const std::byte *next_, *end_;
  std::ptrdiff_t step_;
};

// One segment of one panel as it is packed: see SegmentLayout.
template <TensorType kType>
struct PackedSegment {
  using Format = Quant<kType>;
  const std::byte* bytes;
  const SegmentLayout* at;

  template <int g>
  Bytes64 codes(std::int64_t block) const {
    const std::byte* vectors = bytes + at->codes + block * Format::kBits * 64;
    if constexpr (Format::kBits == 8) return Bytes64::load(vectors + g * 64);
    const Bytes64 both = Bytes64::load(vectors + g % 4 * 64);
    const Bytes64 low = (g < 4 ? both : both.template shift_right<4>()) & Bytes64::all(0x0f);
    if constexpr (Format::kBits == 5) {
      return low | (shift_bits<4 - g>(Bytes64::load(vectors + 4 * 64)) & Bytes64::all(0x10));
    } else if constexpr (Format::kBits == 6) {
      const Bytes64 high = Bytes64::load(vectors + (4 + g / 4) * 64);
      return low | (shift_bits<4 - g % 4 * 2>(high) & Bytes64::all(0x30));
    } else {
      return low;
    }
  }
  F32x16 scale(std::int64_t i) const {
    if constexpr (Format::kSubScales == 16) return F32x16::from_int8(bytes + at->sub_scales + i * kPanel);
    if constexpr (Format::kSubScales == 8) return F32x16::from_uint8(bytes + at->sub_scales + i * kPanel);
    return F32x16::load_half(halves(at->scales) + i * kPanel);
  }
  F32x16 min(std::int64_t i) const {
    if constexpr (Format::kSubScales == 8) return F32x16::from_uint8(bytes + at->sub_mins + i * kPanel);
    return F32x16::load_half(halves(at->mins) + i * kPanel);
  }
  F32x16 super_scale() const { return F32x16::load_half(halves(at->scales)); }
  F32x16 super_min() const { return F32x16::load_half(halves(at->mins)); }

 private:
  template <int n>
  static Bytes64 shift_bits(Bytes64 value) {
    if constexpr (n > 0) return value.template shift_left<n>();
    if constexpr (n < 0) return value.template shift_right<-n>();
    return value;
  }
  const std::uint16_t* halves(std::size_t part) const {
    return reinterpret_cast<const std::uint16_t*>(bytes + part);
  }
};

// The same, widened: a byte for each code, floats for the scales.
template <TensorType kType>
struct WideSegment {
  using Format = Quant<kType>;
  alignas(64) std::byte bytes[kSegment * kPanel];
  alignas(64) float scales[Format::kSubScales == 16 ? 16 : 8][kPanel];
  alignas(64) float mins[8][kPanel];
  alignas(64) float super_scales[kPanel], super_mins[kPanel];

  void widen(const PackedSegment<kType>& packed, std::int64_t blocks) {
    for (std::int64_t b = 0; b < blocks; ++b) {
      for_each_group([&](auto g) { packed.template codes<g>(b).store(bytes + (b * kGroups + g) * 64); });
      if constexpr (Format::kMins) packed.min(b).store(mins[b]);
      if constexpr (Format::kSubScales == 16) {
        packed.scale(2 * b).store(scales[2 * b]);
        packed.scale(2 * b + 1).store(scales[2 * b + 1]);
      } else {
        packed.scale(b).store(scales[b]);
      }
    }
    if constexpr (Format::kSubScales > 0) packed.super_scale().store(super_scales);
    if constexpr (Format::kSubScales == 8) packed.super_min().store(super_mins);
  }

  template <class Fn>
  static void for_each_group(Fn fn) {
    [&]<int... g>(std::integer_sequence<int, g...>) { (fn(std::integral_constant<int, g>{}), ...); }
    (std::make_integer_sequence<int, kGroups>{});
  }

  template <int g>
  Bytes64 codes(std::int64_t block) const {
    return Bytes64::load(bytes + (block * kGroups + g) * 64);
  }
  F32x16 scale(std::int64_t i) const { return F32x16::load(scales[i]); }
  F32x16 min(std::int64_t i) const { return F32x16::load(mins[i]); }
  F32x16 super_scale() const { return F32x16::load(super_scales); }
  F32x16 super_min() const { return F32x16::load(super_mins); }
};

// Exact integer products of the groups [kFirst, kFirst + kCount) of a block, R rows times P panels.
template <class Format, int R, int P, class Segment>
struct VectorDots {
  const Segment* const (&w)[P];
  const QuantizedBlock* const (&x)[R];

  template <int kFirst, int kCount>
  [[gnu::always_inline]] void get(std::int64_t b, F32x16 (&dots)[R][P]) const {
    using Dot = BlockDot<Format::kBits, Format::kZero>;
    Dot running[R][P];
    KVASIR_UNROLLED
    for (int r = 0; r < R; ++r) {
      const QuantizedBlock& block = x[r][b];
      const I32x16 sum = kCount == kGroups ? I32x16::all(block.sum)
                         : kFirst == 0     ? I32x16::all(block.first_half_sum)
                                           : I32x16::all(block.sum) - I32x16::all(block.first_half_sum);
      KVASIR_UNROLLED
      for (int p = 0; p < P; ++p) running[r][p].start(sum);
    }
    const auto group = [&]<int g>(std::integral_constant<int, g>) {
      Bytes64 codes[P];
      KVASIR_UNROLLED
      for (int p = 0; p < P; ++p) codes[p] = w[p]->template codes<kFirst + g>(b);
      KVASIR_UNROLLED
      for (int r = 0; r < R; ++r) {
        const FourInputs four(x[r][b].quants + (kFirst + g) * kDotGroup);
        KVASIR_UNROLLED
        for (int p = 0; p < P; ++p) running[r][p].add(codes[p], four);
      }
      if constexpr ((g + 1) % Dot::kGroupsBeforeFlush == 0 || g + 1 == kCount) {
        KVASIR_UNROLLED
        for (int r = 0; r < R; ++r) {
          KVASIR_UNROLLED
          for (int p = 0; p < P; ++p) running[r][p].flush();
        }
      }
    };
    [&]<int... g>(std::integer_sequence<int, g...>) { (group(std::integral_constant<int, g>{}), ...); }
    (std::make_integer_sequence<int, kCount>{});
    KVASIR_UNROLLED
    for (int r = 0; r < R; ++r) {
      KVASIR_UNROLLED
      for (int p = 0; p < P; ++p) dots[r][p] = to_float(running[r][p].result());
    }
  }
};

// A stream of bytes with little to do for each the hardware fetches fast enough by itself, and better than
// we. It fails where codes are taken apart and scales are more streams (Zen 5: Q4_0 decoded 34 to 44 %
// faster).
template <TensorType kType>
constexpr bool fetches_ahead(int products) {
  return Quant<kType>::kBits < 8 || products >= 4;
}

// x: the rows' blocks from the segment's first on; dots: the integer products of their groups.
template <TensorType kType, class Dots, int R, int P, class Segment>
[[gnu::always_inline]] inline void quant_tile(const Segment* const (&w)[P],
                                              const QuantizedBlock* const (&x)[R], const Dots& dots_of,
                                              std::int64_t blocks, bool first, float* totals,
                                              BlocksAhead& ahead) {
  using Format = Quant<kType>;
  F32x16 sums[R][P];
  KVASIR_UNROLLED
  for (int r = 0; r < R; ++r) {
    KVASIR_UNROLLED
    for (int p = 0; p < P; ++p) sums[r][p] = F32x16::zero();
  }
  for (std::int64_t b = 0; b < blocks; ++b) {
    if constexpr (fetches_ahead<kType>(R * P)) ahead.fetch();
    F32x16 dots[R][P];
    if constexpr (Format::kSubScales == 16) {
      F32x16 second[R][P];
      dots_of.template get<0, 4>(b, dots);
      KVASIR_UNROLLED
      for (int r = 0; r < R; ++r) {
        KVASIR_UNROLLED
        for (int p = 0; p < P; ++p) dots[r][p] = dots[r][p] * w[p]->scale(2 * b);
      }
      dots_of.template get<4, 4>(b, second);
      // Whole numbers below 2^24: exact.
      KVASIR_UNROLLED
      for (int r = 0; r < R; ++r) {
        KVASIR_UNROLLED
        for (int p = 0; p < P; ++p) dots[r][p] = fma(second[r][p], w[p]->scale(2 * b + 1), dots[r][p]);
      }
    } else {
      dots_of.template get<0, 8>(b, dots);
    }
    KVASIR_UNROLLED
    for (int p = 0; p < P; ++p) {
      KVASIR_UNROLLED
      for (int r = 0; r < R; ++r) {
        const QuantizedBlock& block = x[r][b];
        const F32x16 x_scale = F32x16::all(block.scale);
        if constexpr (Format::kSubScales == 16) {
          sums[r][p] = fma(dots[r][p], x_scale, sums[r][p]);
        } else if constexpr (Format::kSubScales == 8) {
          sums[r][p] = fma(dots[r][p] * w[p]->scale(b), x_scale, sums[r][p]);
        } else {
          sums[r][p] = fma(dots[r][p], x_scale * w[p]->scale(b), sums[r][p]);
        }
        if constexpr (Format::kMins && Format::kSubScales == 0) {
          sums[r][p] = fma(to_float(I32x16::all(block.sum)), x_scale * w[p]->min(b), sums[r][p]);
        }
      }
    }
  }
  if constexpr (Format::kSubScales == 0) {
    KVASIR_UNROLLED
    for (int r = 0; r < R; ++r) {
      KVASIR_UNROLLED
      for (int p = 0; p < P; ++p) add_segment(first, sums[r][p], totals + (r * P + p) * kPanel);
    }
    return;
  }
  KVASIR_UNROLLED
  for (int r = 0; r < R; ++r) {
    KVASIR_UNROLLED
    for (int p = 0; p < P; ++p) {
      const float* out = totals + (r * P + p) * kPanel;
      sums[r][p] = fma(w[p]->super_scale(), sums[r][p], first ? F32x16::zero() : F32x16::load(out));
    }
  }
  if constexpr (Format::kSubScales == 8) {
    F32x16 min_sums[R][P];
    KVASIR_UNROLLED
    for (int r = 0; r < R; ++r) {
      KVASIR_UNROLLED
      for (int p = 0; p < P; ++p) min_sums[r][p] = F32x16::zero();
    }
    for (std::int64_t b = 0; b < blocks; ++b) {
      F32x16 mins[P];
      KVASIR_UNROLLED
      for (int p = 0; p < P; ++p) mins[p] = w[p]->min(b);
      KVASIR_UNROLLED
      for (int r = 0; r < R; ++r) {
        const F32x16 x_sum = F32x16::all(x[r][b].scaled_sum);
        KVASIR_UNROLLED
        for (int p = 0; p < P; ++p) min_sums[r][p] = fma(mins[p], x_sum, min_sums[r][p]);
      }
    }
    KVASIR_UNROLLED
    for (int r = 0; r < R; ++r) {
      KVASIR_UNROLLED
      for (int p = 0; p < P; ++p) sums[r][p] = fma(negate(w[p]->super_min()), min_sums[r][p], sums[r][p]);
    }
  }
  KVASIR_UNROLLED
  for (int r = 0; r < R; ++r) {
    KVASIR_UNROLLED
    for (int p = 0; p < P; ++p) sums[r][p].store(totals + (r * P + p) * kPanel);
  }
}

template <TensorType kType, int P, int kMinRows, int kMaxRows, class Segment>
void quant_segment(const Segment* const (&w)[P], const InputRows& x, std::int64_t begin, std::int64_t blocks,
                   std::int64_t rows, float* totals, BlocksAhead& ahead) {
  for_each_row_tile<kMinRows, kMaxRows>(rows, [&](std::int64_t row, auto r) {
    constexpr int kRows = decltype(r)::value;
    const std::int64_t stride = x.k / kQuantBlock;
    const QuantizedBlock* inputs[kRows];
    KVASIR_UNROLLED
    for (int i = 0; i < kRows; ++i) inputs[i] = x.blocks + (row + i) * stride + begin / kQuantBlock;
    const VectorDots<Quant<kType>, kRows, P, Segment> dots{w, inputs};
    quant_tile<kType>(w, inputs, dots, blocks, begin == 0, totals + row * P * kPanel, ahead);
  });
}

// Up to how many rows one panel at a time is best: its weights are fetched ahead, and taken apart again for
// each tile.
template <TensorType kType>
constexpr std::int64_t narrow_rows() {
  return Quant<kType>::kBits == 8 ? kNarrowRows : 3 * kNarrowRows;
}

// One panel for few rows.
template <TensorType kType>
void narrow_panel(const PackedMatrix& w, std::int64_t panel, const InputRows& x, std::int64_t rows, float* y,
                  std::int64_t y_stride) {
  constexpr int kMaxRows = Quant<kType>::kSubScales == 16 ? kQuantRows : kNarrowTileRows;
  alignas(64) float totals[narrow_rows<kType>() * kPanel];
  BlocksAhead ahead(w, panel, 1, (rows + kMaxRows - 1) / kMaxRows);
  for (std::int64_t segment = 0; segment < w.segments(); ++segment) {
    const PackedSegment<kType> packed{w.at(panel, segment), &w.layout(segment)};
    const PackedSegment<kType>* const one[1] = {&packed};
    quant_segment<kType, 1, 1, kMaxRows>(one, x, segment * kSegment, w.segment_inputs(segment) / kQuantBlock,
                                         rows, totals, ahead);
  }
  store_outputs<1>(w, panel, rows, totals, y, y_stride);
}

// P panels for many rows, at most kRowChunk.
template <TensorType kType, int P>
void wide_panels(const PackedMatrix& w, std::int64_t panel, const InputRows& x, std::int64_t rows, float* y,
                 std::int64_t y_stride) {
  constexpr int kMaxRows = Quant<kType>::kSubScales == 16 ? kSubScaleRows : kQuantRows;
  constexpr int kMinRows = smallest_tile(narrow_rows<kType>() + 1, kRowChunk, kMaxRows);
  constexpr bool kWiden = Quant<kType>::kBits != 8;  // bytes are wide
  using Segment = std::conditional_t<kWiden, WideSegment<kType>, PackedSegment<kType>>;
  alignas(64) float totals[kRowChunk * P * kPanel];
  Segment segments[P];
  const Segment* pointers[P];
  KVASIR_UNROLLED
  for (int p = 0; p < P; ++p) pointers[p] = &segments[p];
  BlocksAhead ahead(w, panel, P, (rows + kMaxRows - 1) / kMaxRows);
  fetch_outputs<P>(panel, rows, y, y_stride);
  for (std::int64_t segment = 0; segment < w.segments(); ++segment) {
    const std::int64_t blocks = w.segment_inputs(segment) / kQuantBlock;
    KVASIR_UNROLLED
    for (int p = 0; p < P; ++p) {
      const PackedSegment<kType> packed{w.at(panel + p, segment), &w.layout(segment)};
      if constexpr (kWiden) {
        segments[p].widen(packed, blocks);
      } else {
        segments[p] = packed;
      }
    }
    quant_segment<kType, P, kMinRows, kMaxRows>(pointers, x, segment * kSegment, blocks, rows, totals, ahead);
  }
  store_outputs<P>(w, panel, rows, totals, y, y_stride);
}

template <TensorType kType>
void linear_quants(const PackedMatrix& w, std::int64_t panel_begin, std::int64_t panel_end,
                   const InputRows& x, std::int64_t rows, float* y, std::int64_t y_stride) {
  std::int64_t panel = panel_begin;
  if (rows <= narrow_rows<kType>()) {
    for (; panel < panel_end; ++panel) narrow_panel<kType>(w, panel, x, rows, y, y_stride);
    return;
  }
  for (; panel + kQuantPanels <= panel_end; panel += kQuantPanels) {
    wide_panels<kType, kQuantPanels>(w, panel, x, rows, y, y_stride);
  }
  for (; panel < panel_end; ++panel) wide_panels<kType, 1>(w, panel, x, rows, y, y_stride);
}
