// Integer dot products: pairs of products are summed in 16 bits, which codes of up to 6 bits and a limited
// number of groups cannot overflow (2 * 63 * 127 * 2 < 2^15). Codes of 8 bits are taken as two nibbles.
// Included after vector.h.

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

template <int kZero>
struct BlockDot<8, kZero> {
  static constexpr int kGroupsBeforeFlush = 8;
  I32x16 sum;
  Pairs16 low, high;

  void start(I32x16 x_sum) {
    sum = minus_zero_point<kZero>(x_sum);
    low = high = Pairs16::zero();
  }
  void add(Bytes64 codes, FourInputs x) {
    const Bytes64 nibble = Bytes64::all(0x0f);
    low = low.plus_products(codes & nibble, x);
    high = high.plus_products(codes.shift_right<4>() & nibble, x);
  }
  void flush() {
    sum = plus_pairs(plus_pairs(sum, low, 1), high, 16);
    low = high = Pairs16::zero();
  }
  I32x16 result() const { return sum; }
};
