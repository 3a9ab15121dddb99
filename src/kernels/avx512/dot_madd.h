// Integer dot products without VNNI: pairs of products are summed in 16 bits, which codes of up to 6 bits and
// a limited number of groups cannot overflow (2 * 63 * 127 * 2 < 2^15). Codes of 8 bits are taken as two
// nibbles. Included after vector.h.

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

template <int kZero>
struct BlockDot<8, kZero> {
  static constexpr int kGroupsBeforeFlush = 8;
  __m512i sum, low, high;

  void start(I32x16 x_sum) {
    sum = minus_zero_point<kZero>(x_sum).v;
    low = high = _mm512_setzero_si512();
  }
  void add(Bytes64 codes, FourInputs x) {
    const __m512i nibble = _mm512_set1_epi8(0x0f);
    const __m512i high_codes = _mm512_and_si512(_mm512_srli_epi16(codes.v, 4), nibble);
    low = _mm512_add_epi16(low, _mm512_maddubs_epi16(_mm512_and_si512(codes.v, nibble), x.v));
    high = _mm512_add_epi16(high, _mm512_maddubs_epi16(high_codes, x.v));
  }
  void flush() {
    sum = _mm512_add_epi32(sum, _mm512_madd_epi16(low, _mm512_set1_epi16(1)));
    sum = _mm512_add_epi32(sum, _mm512_madd_epi16(high, _mm512_set1_epi16(16)));
    low = high = _mm512_setzero_si512();
  }
  I32x16 result() const { return {sum}; }
};
