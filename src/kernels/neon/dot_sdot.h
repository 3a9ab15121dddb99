// Integer products with the dot product extension. Included after vector.h.

// To each of four sums the products of its four bytes: exact.
inline int32x4_t add_products(int32x4_t sums, int8x16_t codes, int8x16_t x) {
  return vdotq_s32(sums, codes, x);
}
