// Gumbel-max: of tokens with logits l, the one with the largest l + noise is a draw from their softmax.
#ifndef KVASIR_SAMPLING_GUMBEL_H_
#define KVASIR_SAMPLING_GUMBEL_H_

#include <bit>
#include <cstdint>
#include <span>

#include "base/elementary.h"
#include "kvasir/token.h"

namespace kvasir {

// Where the noise of a token comes from, apart from its id.
struct NoiseSource {
  std::uint64_t seed;
  std::uint32_t choice;
  std::uint64_t position;
};

// 52 random bits become u = (r + 0.5) * 2^-52, exactly: from 2^-53 to 1 - 2^-53, never 0 or 1. (With 53 bits
// the largest, plus a half, would round to u = 1 and give infinite noise.)
inline constexpr std::uint64_t kLargestBits = (std::uint64_t{1} << 52) - 1;

// -log(-log(u)): from about -3.6 to 36.7.
inline double gumbel_from_bits(std::uint64_t bits) {
  const double u = (static_cast<double>(bits) + 0.5) * 0x1p-52;
  return -defined_log(-defined_log(u));
}

// Never below gumbel_from_bits(bits), mostly less than 0.7 above it for noise that can win, and much cheaper:
// -log(u) > 1 - u >= 2^e gives noise < -e log 2, with e the exponent of 1 - u = q * 2^-53, q = 2^53 - 2 bits
// - 1. The last term covers the rounding of the two logs.
inline double gumbel_bound(std::uint64_t bits) {
  const std::uint64_t q = (std::uint64_t{1} << 53) - 2 * bits - 1;
  return static_cast<double>(std::countl_zero(q) - 10) * 0x1.62e42fefa39efp-1 + 0x1p-30;
}

// bits[i]: the 52 random bits of tokens[i]. Same length.
void noise_bits(const NoiseSource& source, std::span<const TokenId> tokens, std::span<std::uint64_t> bits);

// The token with the largest row[token] + noise among those above -inf; the lowest id on ties.
// row [vocab]: no NaN, no +inf; start: a token with a finite logit, best a likely winner.
TokenId draw_token(std::span<const double> row, TokenId start, const NoiseSource& source);

}  // namespace kvasir

#endif  // KVASIR_SAMPLING_GUMBEL_H_
