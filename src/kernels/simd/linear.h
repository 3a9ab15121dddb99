// Linear layers over 16 lanes (the outputs of a panel). Included inside the target region and namespace of
// one instruction set, after its vector.h.

template <int R>
void store_outputs(const F32x16 (&totals)[R], std::int64_t lanes, float* y, std::int64_t y_stride) {
  for (int r = 0; r < R; ++r) {
    if (lanes == kPanel) {
      totals[r].store(y + r * y_stride);
    } else {
      float all[kPanel];
      totals[r].store(all);
      std::memcpy(y + r * y_stride, all, static_cast<std::size_t>(lanes) * sizeof(float));
    }
  }
}

// The first segment's sum is assigned, so that a sum of -0 stays -0.
template <int R>
void add_segment(bool first, const F32x16 (&sums)[R], F32x16 (&totals)[R]) {
  for (int r = 0; r < R; ++r) totals[r] = first ? sums[r] : totals[r] + sums[r];
}

template <int R>
void float_tile(const PackedMatrix& w, std::int64_t panel, const InputRows& x, std::int64_t row,
                F32x16 (&totals)[R]) {
  const float* weights = w.floats.data() + panel * w.k * kPanel;
  const float* inputs = x.floats + row * w.k;
  for (std::int64_t begin = 0; begin < w.k; begin += kSegment) {
    F32x16 sums[R];
    for (int r = 0; r < R; ++r) sums[r] = F32x16::zero();
    const std::int64_t end = std::min(begin + kSegment, w.k);
    for (std::int64_t i = begin; i < end; ++i) {
      const F32x16 column = F32x16::load(weights + i * kPanel);
      for (int r = 0; r < R; ++r) sums[r] = fma(F32x16::all(inputs[r * w.k + i]), column, sums[r]);
    }
    add_segment<R>(begin == 0, sums, totals);
  }
}

inline std::int32_t block_sum(const InputRows& x, std::int64_t block) {
  return x.sums[2 * block] + x.sums[2 * block + 1];
}

template <int R, bool with_min>
void block_tile(const PackedMatrix& w, std::int64_t panel, const InputRows& x, std::int64_t row,
                F32x16 (&totals)[R]) {
  for (std::int64_t begin = 0; begin < w.k; begin += kSegment) {
    F32x16 sums[R];
    for (int r = 0; r < R; ++r) sums[r] = F32x16::zero();
    const std::int64_t end = std::min(begin + kSegment, w.k);
    for (std::int64_t i = begin; i < end; i += kQuantBlock) {
      const std::int8_t* inputs[R];
      std::int32_t input_sums[R];
      for (int r = 0; r < R; ++r) {
        inputs[r] = x.quants + (row + r) * w.k + i;
        input_sums[r] = block_sum(x, ((row + r) * w.k + i) / kQuantBlock);
      }
      IntDot<R> dot;
      dot.run(w.quants.data() + (panel * w.k + i) * kPanel, inputs, input_sums, kQuantBlock / kDotGroup);
      const std::int64_t block = (panel * w.k + i) / kQuantBlock * kPanel;
      const F32x16 scales = F32x16::load(w.scales.data() + block);
      for (int r = 0; r < R; ++r) {
        const std::int64_t x_block = ((row + r) * w.k + i) / kQuantBlock;
        const F32x16 x_scale = F32x16::all(x.scales[x_block]);
        sums[r] = fma(to_float(dot.result(r)), x_scale * scales, sums[r]);
        if constexpr (with_min) {
          const F32x16 x_sum = F32x16::all(static_cast<float>(input_sums[r]));
          sums[r] = fma(x_sum, x_scale * F32x16::load(w.mins.data() + block), sums[r]);
        }
      }
    }
    add_segment<R>(begin == 0, sums, totals);
  }
}

template <int R, bool with_min>
void super_block_tile(const PackedMatrix& w, std::int64_t panel, const InputRows& x, std::int64_t row,
                      F32x16 (&totals)[R]) {
  for (std::int64_t begin = 0; begin < w.k; begin += kSegment) {
    F32x16 sums[R];
    F32x16 min_sums[R];
    for (int r = 0; r < R; ++r) sums[r] = min_sums[r] = F32x16::zero();
    for (std::int64_t i = begin; i < begin + kSegment; i += kQuantBlock) {
      I32x16 dots[R];
      for (int r = 0; r < R; ++r) dots[r] = I32x16::zero();
      for (std::int64_t j = i; j < i + kQuantBlock; j += kSubBlock) {
        const std::int8_t* inputs[R];
        std::int32_t input_sums[R];
        for (int r = 0; r < R; ++r) {
          inputs[r] = x.quants + (row + r) * w.k + j;
          input_sums[r] = x.sums[((row + r) * w.k + j) / kSubBlock];
        }
        IntDot<R> dot;
        dot.run(w.quants.data() + (panel * w.k + j) * kPanel, inputs, input_sums, kSubBlock / kDotGroup);
        const I32x16 scales = I32x16::load(w.sub_scales.data() + (panel * w.k + j) / kSubBlock * kPanel);
        for (int r = 0; r < R; ++r) dots[r] = dots[r] + scales * dot.result(r);
      }
      for (int r = 0; r < R; ++r) {
        const std::int64_t x_block = ((row + r) * w.k + i) / kQuantBlock;
        sums[r] = fma(to_float(dots[r]), F32x16::all(x.scales[x_block]), sums[r]);
        if constexpr (with_min) {
          const F32x16 mins =
              to_float(I32x16::load(w.sub_mins.data() + (panel * w.k + i) / kQuantBlock * kPanel));
          const float x_sum = x.scales[x_block] * static_cast<float>(block_sum(x, x_block));
          min_sums[r] = fma(mins, F32x16::all(x_sum), min_sums[r]);
        }
      }
    }
    const std::int64_t super_block = (panel * w.k + begin) / kSegment * kPanel;
    for (int r = 0; r < R; ++r) {
      totals[r] = fma(F32x16::load(w.scales.data() + super_block), sums[r], totals[r]);
      if constexpr (with_min) {
        totals[r] = fma(negate(F32x16::load(w.mins.data() + super_block)), min_sums[r], totals[r]);
      }
    }
  }
}

template <int R>
void linear_tile(const PackedMatrix& w, std::int64_t panel, const InputRows& x, std::int64_t row, float* y,
                 std::int64_t y_stride) {
  F32x16 totals[R];
  for (int r = 0; r < R; ++r) totals[r] = F32x16::zero();
  switch (w.layout) {
    case WeightLayout::kF32:
    case WeightLayout::kBF16:
      float_tile<R>(w, panel, x, row, totals);
      break;
    case WeightLayout::kInt8:
      block_tile<R, false>(w, panel, x, row, totals);
      break;
    case WeightLayout::kInt8Min:
      block_tile<R, true>(w, panel, x, row, totals);
      break;
    case WeightLayout::kSuperBlock:
      if (w.mins.size() > 0) {
        super_block_tile<R, true>(w, panel, x, row, totals);
      } else {
        super_block_tile<R, false>(w, panel, x, row, totals);
      }
      break;
  }
  store_outputs<R>(totals, std::min(kPanel, w.n - panel * kPanel), y + row * y_stride + panel * kPanel,
                   y_stride);
}

// Rows from `row` on, R at a time, and what is left in smaller tiles.
template <int R>
void linear_rows(const PackedMatrix& w, std::int64_t panel, const InputRows& x, std::int64_t row,
                 std::int64_t rows, float* y, std::int64_t y_stride) {
  for (; row + R <= rows; row += R) linear_tile<R>(w, panel, x, row, y, y_stride);
  if constexpr (R > 1) linear_rows<R / 2>(w, panel, x, row, rows, y, y_stride);
}

void linear(const PackedMatrix& w, std::int64_t panel_begin, std::int64_t panel_end, const InputRows& x,
            std::int64_t rows, float* y, std::int64_t y_stride) {
  const bool floats = w.layout == WeightLayout::kF32 || w.layout == WeightLayout::kBF16;
  for (std::int64_t panel = panel_begin; panel < panel_end; ++panel) {
    if (floats) {
      linear_rows<kFloatRows>(w, panel, x, 0, rows, y, y_stride);
    } else {
      linear_rows<kIntRows>(w, panel, x, 0, rows, y, y_stride);
    }
  }
}
