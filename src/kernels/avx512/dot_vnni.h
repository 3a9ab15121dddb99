// Integer dot products with VNNI, which multiplies unsigned by signed bytes. Included after vector.h.

// The sum over the groups of a block of (code - zero) times input, for 16 outputs: exact, since 255 * 127 *
// 32 is far below 2^31.
template <int kBits, int kZero>
struct BlockDot {
  static constexpr int kGroupsBeforeFlush = 8;
  __m512i sum;

  void start(I32x16 x_sum) { sum = minus_zero_point<kZero>(x_sum).v; }  // x_sum: of all inputs
  void add(Bytes64 codes, FourInputs x) { sum = _mm512_dpbusd_epi32(sum, codes.v, x.v); }
  void flush() {}
  I32x16 result() const { return {sum}; }
};
