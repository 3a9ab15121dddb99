// What the integer products of all instruction sets share. Included after vector.h, before them.

// Minus the zero point times the sum of a block's inputs: what turns a sum over codes into one over quants.
// Zero points are powers of two, or 0.
template <int kZero>
I32x16 minus_zero_point(I32x16 x_sum) {
  if constexpr (kZero == 0) return I32x16::all(0);
  return I32x16::all(0) - x_sum.shift_left<std::countr_zero(static_cast<unsigned>(kZero))>();
}
