// BF16 weights with vdpbf16ps, which adds the product of the high halves of each word to the sum in one fma,
// then that of the low halves: the chain of the definition, two inputs at a time (bf16_products_are_ordered
// checks the machine). It flushes subnormals, which round_bf16 and the packing keep from arising. Included
// after simd/linear.h.

inline F32x16 add_products(F32x16 sum, __m512i weights, std::uint32_t inputs) {
  return {_mm512_dpbf16_ps(sum.v, reinterpret_cast<__m512bh>(weights),
                           reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(inputs))))};
}

// R rows times P panels over one segment; weights: pairs, [inputs / 2][16] of each panel.
template <int R, int P>
void bf16_tile(const std::byte* const (&weights)[P], const std::uint32_t* x, std::int64_t x_stride,
               std::int64_t pairs, bool first, float* totals, ColumnsAhead<P>& ahead) {
  F32x16 sums[R][P];
  KVASIR_UNROLLED
  for (int r = 0; r < R; ++r) {
    KVASIR_UNROLLED
    for (int p = 0; p < P; ++p) sums[r][p] = F32x16::zero();
  }
  for (std::int64_t i = 0; i < pairs; ++i) {
    if constexpr (R > 1) ahead.fetch();
    __m512i columns[P];
    KVASIR_UNROLLED
    for (int p = 0; p < P; ++p) columns[p] = _mm512_loadu_si512(weights[p] + i * 64);
    KVASIR_UNROLLED
    for (int r = 0; r < R; ++r) {
      KVASIR_UNROLLED
      for (int p = 0; p < P; ++p) sums[r][p] = add_products(sums[r][p], columns[p], x[r * x_stride + i]);
    }
  }
  KVASIR_UNROLLED
  for (int r = 0; r < R; ++r) {
    KVASIR_UNROLLED
    for (int p = 0; p < P; ++p) add_segment(first, sums[r][p], totals + (r * P + p) * kPanel);
  }
}

// P panels for at most kRowChunk rows.
template <int P>
void bf16_panels(const PackedMatrix& w, std::int64_t panel, const InputRows& x, std::int64_t rows, float* y,
                 std::int64_t y_stride) {
  alignas(64) float totals[kRowChunk * P * kPanel];
  const std::int64_t x_stride = (w.k + 1) / 2;
  ColumnsAhead<P> ahead(w, panel, rows, kFloatRows);
  for (std::int64_t segment = 0; segment < w.segments(); ++segment) {
    const std::byte* weights[P];
    KVASIR_UNROLLED
    for (int p = 0; p < P; ++p) weights[p] = w.at(panel + p, segment);
    for_each_row_tile<1, kFloatRows>(rows, [&](std::int64_t row, auto r) {
      bf16_tile<decltype(r)::value, P>(weights, x.pairs + row * x_stride + segment * kSegment / 2, x_stride,
                                       (w.segment_inputs(segment) + 1) / 2, segment == 0,
                                       totals + row * P * kPanel, ahead);
    });
  }
  store_outputs<P>(w, panel, rows, totals, y, y_stride);
}

void linear_bf16(const PackedMatrix& w, std::int64_t panel_begin, std::int64_t panel_end, const InputRows& x,
                 std::int64_t rows, float* y, std::int64_t y_stride) {
  std::int64_t panel = panel_begin;
  for (; panel + kFloatPanels <= panel_end; panel += kFloatPanels) {
    bf16_panels<kFloatPanels>(w, panel, x, rows, y, y_stride);
  }
  for (; panel < panel_end; ++panel) bf16_panels<1>(w, panel, x, rows, y, y_stride);
}

// Whether this machine's instruction computes what the definition says: sums are compared that differ if the
// order of the two products, the rounding between them or the fusing does.
bool bf16_products_are_ordered() {
  std::uint32_t state = 1;
  const auto next = [&state] {  // xorshift
    state ^= state << 13;
    state ^= state >> 17;
    return state ^= state << 5;
  };
  // Numbers of both signs from 2^-12 to 2^12.
  const auto number = [&] { return (next() & 0x807fU) | (115 + next() % 25) << 7; };
  for (int trial = 0; trial < 4096; ++trial) {
    alignas(64) std::uint32_t weights[16];
    alignas(64) float sums[16], got[16];
    const std::uint32_t inputs = number() << 16 | number();
    for (int i = 0; i < 16; ++i) {
      weights[i] = number() << 16 | number();
      sums[i] = std::bit_cast<float>(number() << 16 | (next() & 0xffff));
    }
    add_products(F32x16::load(sums), _mm512_load_si512(weights), inputs).store(got);
    for (int i = 0; i < 16; ++i) {
      const auto high = [](std::uint32_t pair) { return std::bit_cast<float>(pair & 0xffff0000U); };
      const auto low = [](std::uint32_t pair) { return std::bit_cast<float>(pair << 16); };
      const float first = std::fma(high(inputs), high(weights[i]), sums[i]);
      const float expected = std::fma(low(inputs), low(weights[i]), first);
      if (std::bit_cast<std::uint32_t>(expected) != std::bit_cast<std::uint32_t>(got[i])) return false;
    }
  }
  return true;
}
