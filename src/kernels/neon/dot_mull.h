// Integer products without the dot product extension. Included after vector.h.

// To each of four sums the products of its four bytes: exact, since inputs are never -128 and so the sum of
// two products is below 2^15.
inline int32x4_t add_products(int32x4_t sums, int8x16_t codes, int8x16_t x) {
  const int16x8_t low = vmull_s8(vget_low_s8(codes), vget_low_s8(x));
  return vpadalq_s16(sums, vpaddq_s16(low, vmull_high_s8(codes, x)));
}
