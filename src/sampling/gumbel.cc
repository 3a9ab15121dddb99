#include "sampling/gumbel.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <array>

#include "base/float_environment.h"
#include "base/philox.h"
#include "kvasir/sampling.h"
#include "sampling/row.h"

namespace kvasir {
namespace {

// The 52 bits are the upper ones of the first two words.
std::uint64_t noise_bits_of(const NoiseSource& source, TokenId token) {
  const auto words = philox4x32(
      {static_cast<std::uint32_t>(source.position), static_cast<std::uint32_t>(source.position >> 32),
       static_cast<std::uint32_t>(token), source.choice},
      {static_cast<std::uint32_t>(source.seed), static_cast<std::uint32_t>(source.seed >> 32)});
  return ((std::uint64_t{words[0]} << 32) | words[1]) >> 12;
}

#if defined(__x86_64__)
// philox4x32 for four tokens, one in each 64-bit lane: the multiplication reads the lower half of a lane and
// fills all of it, so the upper halves may hold anything in between. Twice as fast as the plain loop.
[[gnu::target("avx2")]] void noise_bits_of_four(const NoiseSource& source, const TokenId* tokens,
                                                std::uint64_t* bits) {
  const __m256i multiplier0 = _mm256_set1_epi64x(0xD2511F53), multiplier1 = _mm256_set1_epi64x(0xCD9E8D57);
  const __m256i weyl0 = _mm256_set1_epi64x(0x9E3779B9), weyl1 = _mm256_set1_epi64x(0xBB67AE85);
  const auto position = static_cast<std::int64_t>(source.position),
             seed = static_cast<std::int64_t>(source.seed);
  __m256i c0 = _mm256_set1_epi64x(position), c1 = _mm256_set1_epi64x(position >> 32);
  __m256i c2 = _mm256_cvtepi32_epi64(_mm_loadu_si128(reinterpret_cast<const __m128i*>(tokens)));
  __m256i c3 = _mm256_set1_epi64x(source.choice);
  __m256i k0 = _mm256_set1_epi64x(seed), k1 = _mm256_set1_epi64x(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const __m256i product0 = _mm256_mul_epu32(multiplier0, c0);
    const __m256i product1 = _mm256_mul_epu32(multiplier1, c2);
    c0 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(product1, 32), c1), k0);
    c1 = product1;
    c2 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(product0, 32), c3), k1);
    c3 = product0;
    k0 = _mm256_add_epi64(k0, weyl0);
    k1 = _mm256_add_epi64(k1, weyl1);
  }
  const __m256i low = _mm256_srli_epi64(_mm256_slli_epi64(c1, 32), 32);
  const __m256i words = _mm256_or_si256(_mm256_slli_epi64(c0, 32), low);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(bits), _mm256_srli_epi64(words, 12));
}
#endif

// The best token so far, and the tokens that may still beat it, in ascending order, waiting for their noise.
class Contest {
 public:
  Contest(std::span<const double> row, TokenId start, const NoiseSource& source)
      : row_(row), source_(source), winner_(start) {
    best_ = logit(start) + gumbel_from_bits(noise_bits_of(source, start));
  }

  TokenId run() {
    const double largest_noise = gumbel_from_bits(kLargestBits);
    for (std::size_t i = 0; i < row_.size(); ++i) {
      waiting_[n_waiting_] = static_cast<TokenId>(i);
      n_waiting_ += row_[i] + largest_noise >= best_ ? 1 : 0;  // not true of -inf: best_ is finite
      if (n_waiting_ == kBlock) settle();
    }
    settle();
    return winner_;
  }

 private:
  static constexpr std::size_t kBlock = 128;  // tokens

  double logit(TokenId token) const { return row_[static_cast<std::size_t>(token)]; }

  void settle() {
    noise_bits(source_, std::span(waiting_).first(n_waiting_), std::span(bits_).first(n_waiting_));
    for (std::size_t i = 0; i < n_waiting_; ++i) {
      const TokenId token = waiting_[i];
      // Rounded addition is monotonic: a token whose bound loses would lose with its noise, too.
      if (logit(token) + gumbel_bound(bits_[i]) < best_) continue;
      const double score = logit(token) + gumbel_from_bits(bits_[i]);
      if (score > best_ || (score == best_ && token < winner_)) {
        best_ = score;
        winner_ = token;
      }
    }
    n_waiting_ = 0;
  }

  std::span<const double> row_;  // [vocab]
  const NoiseSource& source_;
  TokenId winner_;
  double best_;
  std::array<TokenId, kBlock> waiting_;
  std::array<std::uint64_t, kBlock> bits_;
  std::size_t n_waiting_ = 0;
};

}  // namespace

void noise_bits(const NoiseSource& source, std::span<const TokenId> tokens, std::span<std::uint64_t> bits) {
  std::size_t i = 0;
#if defined(__x86_64__)
  static const bool has_avx2 = __builtin_cpu_supports("avx2");
  for (; has_avx2 && i + 4 <= tokens.size(); i += 4) noise_bits_of_four(source, &tokens[i], &bits[i]);
#endif
  for (; i < tokens.size(); ++i) bits[i] = noise_bits_of(source, tokens[i]);
}

TokenId draw_token(std::span<const double> row, TokenId start, const NoiseSource& source) {
  return Contest(row, start, source).run();
}

double gumbel_noise(std::uint64_t seed, std::uint32_t choice, std::uint64_t position, TokenId token) {
  return with_defined_floats([&] {
    return gumbel_from_bits(noise_bits_of({seed, choice, position}, token));
  });
}

}  // namespace kvasir
