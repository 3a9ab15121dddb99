// The integer dot product of a block, for 16 outputs. Included after add_products.

// The sum over the groups of a block of (code - zero) times input: exact. Codes of 8 bits become signed bytes
// when 128 is taken from them; the others are.
template <int kBits, int kZero>
struct BlockDot {
  static constexpr int kGroupsBeforeFlush = 8;
  static constexpr int kTaken = kBits == 8 ? 128 : 0;
  I32x16 sum;

  void start(I32x16 x_sum) { sum = minus_zero_point<kZero - kTaken>(x_sum); }  // x_sum: of all inputs
  void add(Bytes64 codes, FourInputs x) {
    sum = {add_products(sum.a, signed_bytes(codes.a), x.v), add_products(sum.b, signed_bytes(codes.b), x.v),
           add_products(sum.c, signed_bytes(codes.c), x.v), add_products(sum.d, signed_bytes(codes.d), x.v)};
  }
  void flush() {}
  I32x16 result() const { return sum; }

 private:
  static int8x16_t signed_bytes(uint8x16_t codes) {
    return vreinterpretq_s8_u8(kTaken == 0 ? codes : veorq_u8(codes, vdupq_n_u8(kTaken)));
  }
};
