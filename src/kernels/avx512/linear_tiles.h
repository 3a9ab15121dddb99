// Many rows against block-quantized weights, with AMX. A tile product is 16 rows times one panel over the
// inputs that share a scale: exact integers, which go through memory to the vectors that weigh and add them
// as everywhere. Included after simd/linear.h.

inline constexpr std::int64_t kTileChunk = 128;  // rows that share widened quants
inline constexpr int kWeighedRows = 8;           // their sums and products fit in the vector registers

// The codes of a segment without their zero point: signed bytes.
template <TensorType kType>
void take_zero_point(WideSegment<kType>& segment, std::int64_t blocks) {
  constexpr int kZero = Quant<kType>::kZero;
  if constexpr (kZero != 0) {
    const __m512i zero = Bytes64::all(kZero).v;
    for (std::int64_t i = 0; i < blocks * kGroups; ++i) {
      std::byte* const codes = segment.bytes + i * kTileRowBytes;
      Bytes64{_mm512_sub_epi8(Bytes64::load(codes).v, zero)}.store(codes);
    }
  }
}

// The products of 16 rows with P panels over one segment.
template <TensorType kType, int P>
class TileProducts {
 public:
  // Inputs of one product.
  static constexpr int kInputs = Quant<kType>::kSubScales == 16 ? kSubBlock : kQuantBlock;
  static constexpr Tiles::Shape kRowsShape = {kTileRows, kInputs},
                                kCodesShape = {kInputs / kDotGroup, kTileRowBytes},
                                kProductsShape = {kTileRows, kTileRowBytes};
  // Of tiles: the rows, then the codes and the products of each panel.
  static constexpr Tiles::Shape kShapes[] = {kRowsShape, kCodesShape, kProductsShape, kCodesShape,
                                             kProductsShape};

  // x: the first row's blocks; x_stride: to the next row's, in blocks.
  void compute(const WideSegment<kType> (&w)[P], const QuantizedBlock* x, std::int64_t x_stride,
               std::int64_t blocks) {
    for (std::int64_t b = 0; b < blocks; ++b) {
      for (int part = 0; part < kParts; ++part) {
        const std::int64_t product = b * kParts + part;
        load_tile<0>(x[b].quants + part * kInputs, x_stride * static_cast<std::int64_t>(sizeof *x));
        const auto panel = [&]<int p>(std::integral_constant<int, p>) {
          constexpr int kCodes = 1 + 2 * p, kSums = 2 + 2 * p;
          load_tile<kCodes>(w[p].bytes + product * kInputs * kPanel, kTileRowBytes);
          zero_tile<kSums>();
          multiply_tiles<kSums, 0, kCodes>();
          store_tile<kSums>(products_[p][product], kTileRowBytes);
        };
        [&]<int... p>(std::integer_sequence<int, p...>) { (panel(std::integral_constant<int, p>{}), ...); }
        (std::make_integer_sequence<int, P>{});
      }
    }
  }

  // Those of kWeighedRows rows with one panel: see VectorDots.
  struct Dots {
    const std::int32_t (*products)[kTileRows][kPanel];
    int row;

    template <int kFirst, int kCount>
    [[gnu::always_inline]] void get(std::int64_t b, F32x16 (&dots)[kWeighedRows][1]) const {
      const auto& product = products[b * kParts + kFirst * kDotGroup / kInputs];
      KVASIR_UNROLLED
      for (int r = 0; r < kWeighedRows; ++r) {
        dots[r][0] = to_float(I32x16{_mm512_load_si512(product[row + r])});
      }
    }
  };
  Dots dots(int panel, int row) const { return {products_[panel], row}; }

 private:
  static constexpr int kParts = kQuantBlock / kInputs;
  alignas(64) std::int32_t products_[P][kSegment / kInputs][kTileRows][kPanel];
};

// P panels for at most kTileChunk rows.
template <TensorType kType, int P>
void tile_panels(const PackedMatrix& w, std::int64_t panel, const InputRows& x, std::int64_t rows, float* y,
                 std::int64_t y_stride) {
  constexpr std::int64_t kSegmentBlocks = kSegment / kQuantBlock;
  constexpr int kParts = kTileRows / kWeighedRows;
  alignas(64) float totals[P][kTileChunk * kPanel];
  WideSegment<kType> segments[P];
  TileProducts<kType, P> products;
  QuantizedBlock last_rows[kTileRows * kSegmentBlocks] = {};  // filled up with zeros
  const std::int64_t tiles = (rows + kTileRows - 1) / kTileRows;
  BlocksAhead ahead(w, panel, P, tiles * P * kParts);
  for (int p = 0; p < P; ++p) fetch_outputs<1>(panel + p, rows, y, y_stride);
  for (std::int64_t segment = 0; segment < w.segments(); ++segment) {
    const std::int64_t blocks = w.segment_inputs(segment) / kQuantBlock;
    for (int p = 0; p < P; ++p) {
      segments[p].widen({w.at(panel + p, segment), &w.layout(segment)}, blocks);
      take_zero_point(segments[p], blocks);
    }
    for (std::int64_t row = 0; row < rows; row += kTileRows) {
      std::int64_t stride = x.k / kQuantBlock;
      const QuantizedBlock* first = x.blocks + row * stride + segment * kSegmentBlocks;
      if (const std::int64_t left = rows - row; left < kTileRows) {
        for (std::int64_t r = 0; r < left; ++r) {
          std::copy_n(first + r * stride, blocks, last_rows + r * kSegmentBlocks);
        }
        first = last_rows;
        stride = kSegmentBlocks;
      }
      products.compute(segments, first, stride, blocks);
      for (int part = 0; part < kParts; ++part) {
        const int part_row = part * kWeighedRows;
        const QuantizedBlock* inputs[kWeighedRows];
        for (int r = 0; r < kWeighedRows; ++r) inputs[r] = first + (part_row + r) * stride;
        for (int p = 0; p < P; ++p) {
          const WideSegment<kType>* const one[1] = {&segments[p]};
          quant_tile<kType>(one, inputs, products.dots(p, part_row), blocks, segment == 0,
                            totals[p] + (row + part_row) * kPanel, ahead);
        }
      }
    }
  }
  for (int p = 0; p < P; ++p) store_outputs<1>(w, panel + p, rows, totals[p], y, y_stride);
}

template <TensorType kType>
void linear_tiles(const PackedMatrix& w, std::int64_t panel_begin, std::int64_t panel_end, const InputRows& x,
                  std::int64_t rows, float* y, std::int64_t y_stride) {
  constexpr int kPanels = 2;
  const Tiles tiles(TileProducts<kType, kPanels>::kShapes);
  for (std::int64_t row = 0; row < rows; row += kTileChunk) {
    const std::int64_t chunk = std::min(kTileChunk, rows - row);
    const InputRows chunk_x = x.from(row);
    float* const chunk_y = y + row * y_stride;
    std::int64_t panel = panel_begin;
    for (; panel + kPanels <= panel_end; panel += kPanels) {
      tile_panels<kType, kPanels>(w, panel, chunk_x, chunk, chunk_y, y_stride);
    }
    for (; panel < panel_end; ++panel) tile_panels<kType, 1>(w, panel, chunk_x, chunk, chunk_y, y_stride);
  }
}
