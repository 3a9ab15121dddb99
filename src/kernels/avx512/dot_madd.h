// Integer dot products without VNNI. Included after vector.h.

// For R rows at once: sums over 4 * groups inputs of x times the weights of 16 outputs. Products of int8 are
// formed as int16 pairs summed into int32: exact for every value.
template <int R>
struct IntDot {
  // Each register: eight outputs, two partial sums each.
  __m512i sums[R][2];

  // w: [groups][16 outputs][4]; x[r]: [groups][4].
  void run(const std::int8_t* w, const std::int8_t* const* x, const std::int32_t* /*x_sums*/, int groups) {
    for (int r = 0; r < R; ++r) sums[r][0] = sums[r][1] = _mm512_setzero_si512();
    for (int g = 0; g < groups; ++g, w += 64) {
      __m512i inputs[R];
      for (int r = 0; r < R; ++r) {
        std::int32_t four;
        std::memcpy(&four, x[r] + 4 * g, sizeof four);
        inputs[r] = _mm512_broadcastq_epi64(_mm_cvtepi8_epi16(_mm_cvtsi32_si128(four)));
      }
      for (int j = 0; j < 2; ++j) {
        const __m512i weights =
            _mm512_cvtepi8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(w + 32 * j)));
        for (int r = 0; r < R; ++r) {
          sums[r][j] = _mm512_add_epi32(sums[r][j], _mm512_madd_epi16(weights, inputs[r]));
        }
      }
    }
  }

  I32x16 result(int r) const {
    const __m512i even = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i odd = _mm512_add_epi32(even, _mm512_set1_epi32(1));
    return {_mm512_add_epi32(_mm512_permutex2var_epi32(sums[r][0], even, sums[r][1]),
                             _mm512_permutex2var_epi32(sums[r][0], odd, sums[r][1]))};
  }
};
