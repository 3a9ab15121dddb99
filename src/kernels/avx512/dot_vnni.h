// Integer dot products with VNNI, which multiplies unsigned by signed bytes: weights are taken as w + 128,
// and each sum starts at -128 times the sum of its inputs. Exact: 255 * 127 * 32 is far below 2^31. Included
// after vector.h.

// For R rows at once: sums over 4 * groups inputs of x times the weights of 16 outputs.
template <int R>
struct IntDot {
  __m512i sums[R];

  // w: [groups][16 outputs][4]; x[r]: [groups][4]; x_sums[r]: the sum of x[r].
  void run(const std::int8_t* w, const std::int8_t* const* x, const std::int32_t* x_sums, int groups) {
    for (int r = 0; r < R; ++r) sums[r] = _mm512_set1_epi32(-128 * x_sums[r]);
    for (int g = 0; g < groups; ++g) {
      const __m512i weights = _mm512_xor_si512(_mm512_loadu_si512(w + 64 * g), _mm512_set1_epi8(-128));
      for (int r = 0; r < R; ++r) {
        std::int32_t four;
        std::memcpy(&four, x[r] + 4 * g, sizeof four);
        sums[r] = _mm512_dpbusd_epi32(sums[r], weights, _mm512_set1_epi32(four));
      }
    }
  }

  I32x16 result(int r) const { return {sums[r]}; }
};
