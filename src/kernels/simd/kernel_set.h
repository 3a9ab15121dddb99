// The table of one instruction set. Included last, after the loops.

inline void linear_chunk(const PackedMatrix& w, std::int64_t begin, std::int64_t end, const InputRows& x,
                         std::int64_t rows, float* y, std::int64_t y_stride) {
  switch (w.type) {
    case TensorType::kF32:
      return linear_floats<TensorType::kF32>(w, begin, end, x, rows, y, y_stride);
    case TensorType::kF16:
      return linear_floats<TensorType::kF16>(w, begin, end, x, rows, y, y_stride);
    case TensorType::kBF16:
      return linear_bf16(w, begin, end, x, rows, y, y_stride);
    default:
      return with_quant_type(w.type,
                             [&](auto type) { linear_quants<type()>(w, begin, end, x, rows, y, y_stride); });
  }
}

void linear(const PackedMatrix& w, std::int64_t panel_begin, std::int64_t panel_end, const InputRows& x,
            std::int64_t rows, float* y, std::int64_t y_stride) {
  for (std::int64_t row = 0; row < rows; row += kRowChunk) {
    linear_chunk(w, panel_begin, panel_end, x.from(row), std::min(kRowChunk, rows - row), y + row * y_stride,
                 y_stride);
  }
}

inline KernelSet make_kernel_set(const char* name) {
  KernelSet set{};
  set.name = name;
  set.linear = linear;
  set.quantize = quantize;
  set.round_bf16 = round_bf16;
  set.rms_norm = rms_norm;
  set.swiglu = swiglu;
  set.geglu = geglu;
  set.add = add;
  set.rope = rope;
  set.store_kv = store_kv;
  set.attention = attention;
  set.combine_spans = combine_spans;
  return set;
}
