// BF16 weights where the machine has no bfloat16 products: the rounded inputs are widened to floats. Included
// after linear.h.

void linear_bf16(const PackedMatrix& w, std::int64_t panel_begin, std::int64_t panel_end, const InputRows& x,
                 std::int64_t rows, float* y, std::int64_t y_stride) {
  linear_floats<TensorType::kBF16>(w, panel_begin, panel_end, x, rows, y, y_stride);
}
