// Integer dot products without VNNI: pairs of products are summed in 16 bits, which codes of up to 6 bits and
// a limited number of groups cannot overflow (2 * 63 * 127 * 2 < 2^15). Quants of 8 bits give their sign to
// the input; each group is widened then (128 * 127 * 2 < 2^15). Included after vector.h.

// The sum over the groups of a block of (code - zero) times input, for 16 outputs: exact.
template <int kBits, int kZero>
struct BlockDot {
  static constexpr int kGroupsBeforeFlush = kBits == 6 ? 2 : kBits == 5 ? 4 : 8;
  __m512i sum, pairs;

  void start(I32x16 x_sum) {  // x_sum: of all inputs
    sum = minus_zero_point<kZero>(x_sum).v;
    pairs = _mm512_setzero_si512();
  }
  void add(Bytes64 codes, FourInputs x) {
    pairs = _mm512_add_epi16(pairs, _mm512_maddubs_epi16(codes.v, x.v));
  }
  void flush() {
    sum = _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
    pairs = _mm512_setzero_si512();
  }
  I32x16 result() const { return {sum}; }
};

template <>
struct BlockDot<8, 128> {
  static constexpr int kGroupsBeforeFlush = 8;
  __m512i sum;

  void start(I32x16 /*x_sum*/) { sum = _mm512_setzero_si512(); }
  void add(Bytes64 codes, FourInputs x) {
    const __m512i quants = _mm512_xor_si512(codes.v, _mm512_set1_epi8(-128));
    const __m512i signed_x =
        _mm512_mask_sub_epi8(x.v, _mm512_movepi8_mask(quants), _mm512_setzero_si512(), x.v);
    const __m512i pairs = _mm512_maddubs_epi16(_mm512_abs_epi8(quants), signed_x);
    sum = _mm512_add_epi32(sum, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
  }
  void flush() {}
  I32x16 result() const { return {sum}; }
};
