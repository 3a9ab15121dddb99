// Integer dot products: pairs of products are summed in 16 bits, which codes of up to 6 bits and a limited
// number of groups cannot overflow (2 * 63 * 127 * 2 < 2^15). Quants of 8 bits give their sign to the input;
// each group is widened then (128 * 127 * 2 < 2^15). Included after vector.h.

// Eight outputs each.
struct Pairs16 {
  __m256i low, high;

  static Pairs16 zero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
  Pairs16 plus_products(Bytes64 codes, FourInputs x) const {
    return {_mm256_add_epi16(low, _mm256_maddubs_epi16(codes.low, x.v)),
            _mm256_add_epi16(high, _mm256_maddubs_epi16(codes.high, x.v))};
  }
};

// a, and the pairs times the factor.
inline I32x16 plus_pairs(I32x16 a, Pairs16 pairs, std::int16_t factor) {
  const __m256i factors = _mm256_set1_epi16(factor);
  return {_mm256_add_epi32(a.low, _mm256_madd_epi16(pairs.low, factors)),
          _mm256_add_epi32(a.high, _mm256_madd_epi16(pairs.high, factors))};
}

// The sum over the groups of a block of (code - zero) times input, for 16 outputs: exact.
template <int kBits, int kZero>
struct BlockDot {
  static constexpr int kGroupsBeforeFlush = kBits == 6 ? 2 : kBits == 5 ? 4 : 8;
  I32x16 sum;
  Pairs16 pairs;

  void start(I32x16 x_sum) {  // x_sum: of all inputs
    sum = minus_zero_point<kZero>(x_sum);
    pairs = Pairs16::zero();
  }
  void add(Bytes64 codes, FourInputs x) { pairs = pairs.plus_products(codes, x); }
  void flush() {
    sum = plus_pairs(sum, pairs, 1);
    pairs = Pairs16::zero();
  }
  I32x16 result() const { return sum; }
};

template <>
struct BlockDot<8, 128> {
  static constexpr int kGroupsBeforeFlush = 8;
  I32x16 sum;

  void start(I32x16 /*x_sum*/) { sum = I32x16::all(0); }
  void add(Bytes64 codes, FourInputs x) {
    sum = {add_products(sum.low, codes.low, x.v), add_products(sum.high, codes.high, x.v)};
  }
  void flush() {}
  I32x16 result() const { return sum; }

 private:
  static __m256i add_products(__m256i sum, __m256i codes, __m256i x) {
    const __m256i quants = _mm256_xor_si256(codes, _mm256_set1_epi8(-128));
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(quants), _mm256_sign_epi8(x, quants));
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
};
