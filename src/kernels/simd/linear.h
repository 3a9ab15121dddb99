// Linear layers over 16 lanes (the outputs of a panel). Included inside the target region and namespace of
// one instruction set, after its vector.h and the types of its integer products.
//
// A tile is R rows times P panels, in registers, over one segment. Few rows take the weights as they are
// packed; many rows share weights that were widened once into memory that the first-level cache holds. Both
// run the same tile.

inline constexpr std::int64_t kRowChunk = 120;  // rows that share widened weights

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
      for (int p = 0; p < P; ++p) F32x16::load(totals + p * kPanel).store(y + p * kPanel);
    }
  }
}

// The first segment's sum is assigned, so that a sum of -0 stays -0.
inline void add_segment(bool first, F32x16 sum, float* total) {
  (first ? sum : F32x16::load(total) + sum).store(total);
}

// ---- Float weights

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

// x: [R] rows of x_stride; totals: rows of total_stride.
template <int R, int P, class Columns>
void float_tile(const Columns (&w)[P], const float* x, std::int64_t x_stride, std::int64_t inputs, bool first,
                float* totals, std::int64_t total_stride) {
  F32x16 sums[R][P];
  for (int r = 0; r < R; ++r) {
    for (int p = 0; p < P; ++p) sums[r][p] = F32x16::zero();
  }
#pragma GCC unroll 2
  for (std::int64_t i = 0; i < inputs; ++i) {
    F32x16 columns[P];
    for (int p = 0; p < P; ++p) columns[p] = w[p](i);
    for (int r = 0; r < R; ++r) {
      const F32x16 input = F32x16::all(x[r * x_stride + i]);
      for (int p = 0; p < P; ++p) sums[r][p] = fma(input, columns[p], sums[r][p]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int p = 0; p < P; ++p) add_segment(first, sums[r][p], totals + r * total_stride + p * kPanel);
  }
}

// The floats that the rounded inputs [0, inputs) of R rows are, [R][kSegment].
inline void widen_bf16(const std::uint32_t* pairs, std::int64_t pair_stride, std::int64_t rows,
                       std::int64_t inputs, float* x) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t i = 0; i < inputs; ++i) {
      x[r * kSegment + i] = bf16_of_pair(pairs[r * pair_stride + i / 2], i);
    }
  }
}

// One segment of P panels for `rows` rows.
template <TensorType kType, int P, int kMaxRows, class Columns>
void float_segment(const Columns (&w)[P], const InputRows& x, std::int64_t begin, std::int64_t inputs,
                   std::int64_t rows, float* totals) {
  for_each_row_tile<1, kMaxRows>(rows, [&](std::int64_t row, auto r) {
    constexpr int kRows = decltype(r)::value;
    float* out = totals + row * P * kPanel;
    if constexpr (kType == TensorType::kBF16) {
      float widened[kRows * kSegment];
      const std::int64_t pairs = (x.k + 1) / 2;
      widen_bf16(x.pairs + row * pairs + begin / 2, pairs, kRows, inputs, widened);
      float_tile<kRows, P>(w, widened, kSegment, inputs, begin == 0, out, P * kPanel);
    } else {
      float_tile<kRows, P>(w, x.floats + row * x.k + begin, x.k, inputs, begin == 0, out, P * kPanel);
    }
  });
}

// P panels from `panel` on, for at most kRowChunk rows.
template <TensorType kType, int P, int kMaxRows>
void float_panels(const PackedMatrix& w, std::int64_t panel, const InputRows& x, std::int64_t rows, float* y,
                  std::int64_t y_stride) {
  alignas(64) float totals[kRowChunk * P * kPanel];
  for (std::int64_t segment = 0; segment < w.segments(); ++segment) {
    const std::int64_t begin = segment * kSegment, inputs = w.segment_inputs(segment);
    ColumnsOf<kType> packed[P];
    for (int p = 0; p < P; ++p) packed[p] = {w.at(panel + p, segment)};
    if (kType == TensorType::kF32 || rows <= kWidenRows) {
      float_segment<kType, P, kMaxRows>(packed, x, begin, inputs, rows, totals);
      continue;
    }
    alignas(64) float widened[P][kSegment * kPanel];
    F32Columns columns[P];
    for (int p = 0; p < P; ++p) {
      for (std::int64_t i = 0; i < inputs; ++i) packed[p](i).store(widened[p] + i * kPanel);
      columns[p] = {reinterpret_cast<const std::byte*>(widened[p])};
    }
    float_segment<kType, P, kMaxRows>(columns, x, begin, inputs, rows, totals);
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
  // What lies some blocks ahead in memory, in this panel or the next.
  void prefetch(std::int64_t block) const {
    constexpr std::int64_t kBytes = Format::kBits * 64, kAhead = 2048;
    const std::byte* ahead = bytes + at->codes + block * kBytes + kAhead;
    for (std::int64_t line = 0; line < kBytes; line += 64) __builtin_prefetch(ahead + line);
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
  void prefetch(std::int64_t /*block*/) const {}  // it is there
  F32x16 scale(std::int64_t i) const { return F32x16::load(scales[i]); }
  F32x16 min(std::int64_t i) const { return F32x16::load(mins[i]); }
  F32x16 super_scale() const { return F32x16::load(super_scales); }
  F32x16 super_min() const { return F32x16::load(super_mins); }
};

// Exact integer products of the groups [kFirst, kFirst + kCount) of a block, R rows times P panels.
template <class Format, int R, int P, int kFirst, int kCount, class Segment>
[[gnu::always_inline]] inline void dot_groups(const Segment* const (&w)[P], std::int64_t b,
                                              const QuantizedBlock* const (&x)[R], F32x16 (&dots)[R][P]) {
  using Dot = BlockDot<Format::kBits, Format::kZero>;
  Dot running[R][P];
  for (int r = 0; r < R; ++r) {
    const QuantizedBlock& block = x[r][b];
    const I32x16 sum = kCount == kGroups ? I32x16::all(block.sum)
                       : kFirst == 0     ? I32x16::all(block.first_half_sum)
                                         : I32x16::all(block.sum) - I32x16::all(block.first_half_sum);
    for (int p = 0; p < P; ++p) running[r][p].start(sum);
  }
  const auto group = [&]<int g>(std::integral_constant<int, g>) {
    Bytes64 codes[P];
    for (int p = 0; p < P; ++p) codes[p] = w[p]->template codes<kFirst + g>(b);
    for (int r = 0; r < R; ++r) {
      const FourInputs four(x[r][b].quants + (kFirst + g) * kDotGroup);
      for (int p = 0; p < P; ++p) running[r][p].add(codes[p], four);
    }
    if constexpr ((g + 1) % Dot::kGroupsBeforeFlush == 0 || g + 1 == kCount) {
      for (int r = 0; r < R; ++r) {
        for (int p = 0; p < P; ++p) running[r][p].flush();
      }
    }
  };
  [&]<int... g>(std::integer_sequence<int, g...>) { (group(std::integral_constant<int, g>{}), ...); }
  (std::make_integer_sequence<int, kCount>{});
  for (int r = 0; r < R; ++r) {
    for (int p = 0; p < P; ++p) dots[r][p] = to_float(running[r][p].result());
  }
}

// x: rows of x_stride blocks, at the segment's first.
template <TensorType kType, int R, int P, class Segment>
void quant_tile(const Segment* const (&w)[P], const QuantizedBlock* x, std::int64_t x_stride,
                std::int64_t blocks, bool first, float* totals) {
  using Format = Quant<kType>;
  const QuantizedBlock* inputs[R];
  for (int r = 0; r < R; ++r) inputs[r] = x + r * x_stride;
  F32x16 sums[R][P];
  for (int r = 0; r < R; ++r) {
    for (int p = 0; p < P; ++p) sums[r][p] = F32x16::zero();
  }
  for (std::int64_t b = 0; b < blocks; ++b) {
    // With little to do for each byte, the hardware fetches fast enough by itself.
    if constexpr (P == 1 && 2 * R >= Format::kBits) w[0]->prefetch(b);
    F32x16 dots[R][P];
    if constexpr (Format::kSubScales == 16) {
      F32x16 second[R][P];
      dot_groups<Format, R, P, 0, 4>(w, b, inputs, dots);
      for (int r = 0; r < R; ++r) {
        for (int p = 0; p < P; ++p) dots[r][p] = dots[r][p] * w[p]->scale(2 * b);
      }
      dot_groups<Format, R, P, 4, 4>(w, b, inputs, second);
      // Whole numbers below 2^24: exact.
      for (int r = 0; r < R; ++r) {
        for (int p = 0; p < P; ++p) dots[r][p] = fma(second[r][p], w[p]->scale(2 * b + 1), dots[r][p]);
      }
    } else {
      dot_groups<Format, R, P, 0, 8>(w, b, inputs, dots);
    }
    for (int p = 0; p < P; ++p) {
      for (int r = 0; r < R; ++r) {
        const QuantizedBlock& block = inputs[r][b];
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
    for (int r = 0; r < R; ++r) {
      for (int p = 0; p < P; ++p) add_segment(first, sums[r][p], totals + (r * P + p) * kPanel);
    }
    return;
  }
  for (int r = 0; r < R; ++r) {
    for (int p = 0; p < P; ++p) {
      const float* out = totals + (r * P + p) * kPanel;
      sums[r][p] = fma(w[p]->super_scale(), sums[r][p], first ? F32x16::zero() : F32x16::load(out));
    }
  }
  if constexpr (Format::kSubScales == 8) {
    F32x16 min_sums[R][P];
    for (int r = 0; r < R; ++r) {
      for (int p = 0; p < P; ++p) min_sums[r][p] = F32x16::zero();
    }
    for (std::int64_t b = 0; b < blocks; ++b) {
      F32x16 mins[P];
      for (int p = 0; p < P; ++p) mins[p] = w[p]->min(b);
      for (int r = 0; r < R; ++r) {
        const F32x16 x_sum = F32x16::all(inputs[r][b].scaled_sum);
        for (int p = 0; p < P; ++p) min_sums[r][p] = fma(mins[p], x_sum, min_sums[r][p]);
      }
    }
    for (int r = 0; r < R; ++r) {
      for (int p = 0; p < P; ++p) sums[r][p] = fma(negate(w[p]->super_min()), min_sums[r][p], sums[r][p]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int p = 0; p < P; ++p) sums[r][p].store(totals + (r * P + p) * kPanel);
  }
}

template <TensorType kType, int P, int kMinRows, int kMaxRows, class Segment>
void quant_segment(const Segment* const (&w)[P], const InputRows& x, std::int64_t begin, std::int64_t blocks,
                   std::int64_t rows, float* totals) {
  for_each_row_tile<kMinRows, kMaxRows>(rows, [&](std::int64_t row, auto r) {
    constexpr int kRows = decltype(r)::value;
    const std::int64_t stride = x.k / kQuantBlock;
    quant_tile<kType, kRows, P>(w, x.blocks + row * stride + begin / kQuantBlock, stride, blocks, begin == 0,
                                totals + row * P * kPanel);
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
  for (std::int64_t segment = 0; segment < w.segments(); ++segment) {
    const PackedSegment<kType> packed{w.at(panel, segment), &w.layout(segment)};
    const PackedSegment<kType>* const one[1] = {&packed};
    quant_segment<kType, 1, 1, kMaxRows>(one, x, segment * kSegment, w.segment_inputs(segment) / kQuantBlock,
                                         rows, totals);
  }
  store_outputs<1>(w, panel, rows, totals, y, y_stride);
}

// P panels for many rows, at most kRowChunk.
template <TensorType kType, int P>
void wide_panels(const PackedMatrix& w, std::int64_t panel, const InputRows& x, std::int64_t rows, float* y,
                 std::int64_t y_stride) {
  constexpr int kMaxRows = Quant<kType>::kSubScales == 16 ? kSubScaleRows : kQuantRows;
  // More than narrow_rows rows make more than kTiles tiles; the smallest come from one row too many for them.
  constexpr int kTiles = (narrow_rows<kType>() + kMaxRows - 1) / kMaxRows;
  constexpr int kMinRows = (kTiles * kMaxRows + 1) / (kTiles + 1);
  constexpr bool kWiden = Quant<kType>::kBits != 8;  // bytes are wide
  using Segment = std::conditional_t<kWiden, WideSegment<kType>, PackedSegment<kType>>;
  alignas(64) float totals[kRowChunk * P * kPanel];
  Segment segments[P];
  const Segment* pointers[P];
  for (int p = 0; p < P; ++p) pointers[p] = &segments[p];
  for (std::int64_t segment = 0; segment < w.segments(); ++segment) {
    const std::int64_t blocks = w.segment_inputs(segment) / kQuantBlock;
    for (int p = 0; p < P; ++p) {
      const PackedSegment<kType> packed{w.at(panel + p, segment), &w.layout(segment)};
      if constexpr (kWiden) {
        segments[p].widen(packed, blocks);
      } else {
        segments[p] = packed;
      }
    }
    quant_segment<kType, P, kMinRows, kMaxRows>(pointers, x, segment * kSegment, blocks, rows, totals);
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
