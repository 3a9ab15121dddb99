// From a row of logits to the next token.
//
// One order in every path: logit bias -> repetition penalty -> presence and frequency penalties ->
// temperature -> top-k -> top-p -> min-p -> one draw from the softmax of what is left. All of it in double
// precision, with our own exp and log, so that the same row gives the same token on every machine.
#ifndef KVASIR_SAMPLING_H_
#define KVASIR_SAMPLING_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kvasir/token.h"

namespace kvasir {

// ---- Filters.
//
// In place on one row [vocab]; a dropped position becomes -inf, a kept one keeps its value, so that filters
// compose: each sees the distribution renormalised over what the one before it kept. A mass or probability
// within a relative 2^-40 of its threshold counts as having reached it: round thresholds are met exactly on
// paper, and rounding must not decide. A row of nothing but -inf stays as it is.
// Error(kRuntime) for a NaN or +inf in the row, Error(kInvalidArgument) for a threshold that is NaN.

// Keeps the k largest; ties at the boundary are kept. k <= 0 or k >= vocab keeps all.
void top_k_filter(std::span<double> logits, std::int64_t k);

// Nucleus (Holtzman et al. 2020): going down from the most probable (equal logits: lowest id first), drops a
// token if the mass strictly before it has already reached p. The argmax is always kept: p <= 0 keeps it
// alone. p >= 1 keeps all.
void top_p_filter(std::span<double> logits, double p);

// Keeps the tokens with probability >= min_p * (largest probability). min_p <= 0 keeps all; above 1 counts
// as 1.
void min_p_filter(std::span<double> logits, double min_p);

// ---- Parameters of one request.

// Temperature 0 is greedy: the argmax after bias and penalties, the lowest id on ties, and no filter runs.
struct SamplingParams {
  double temperature = 1.0;  // >= 0, finite: l becomes (l - largest l) / temperature; 0 is greedy (above)
  std::int64_t top_k = 0;    // >= 0; 0 is off
  double top_p = 1.0;        // in [0, 1]; 1 is off
  double min_p = 0.0;        // in [0, 1]; 0 is off
  // > 0, finite; l > 0 ? l / r : l * r, once per id found in prompt or output (CTRL, 2019)
  double repetition_penalty = 1.0;
  double presence_penalty = 0.0;   // in [-2, 2]; subtracted once from ids found in the output
  double frequency_penalty = 0.0;  // in [-2, 2]; subtracted once per occurrence in the output
  // The penalties look at the last so many tokens of prompt + output; 0 is all.
  std::int64_t penalty_window = 0;
  std::vector<std::pair<TokenId, double>> logit_bias;  // added first; ids once, values in [-100, 100]
  std::uint64_t seed = 0;                              // of the draw; every value is a seed, 0 too
  std::uint32_t choice = 0;                            // index among the n choices of one request
};

// Error(kInvalidArgument) naming the first parameter that is out of its range (NaN is out of every range). An
// id that logit_bias has twice is refused, too.
void check_sampling_params(const SamplingParams& params, std::int32_t vocab_size);

// ---- The draw.

// Gumbel noise of one token at one place: -log(-log(u)), u in (0, 1) from Philox 4x32-10 (Salmon et al. 2011)
// with the seed as its 64-bit key and (position, token, choice) as its counter: words low(position),
// high(position), token, choice. Of the result's first word, then its second, the upper 52 bits r give
// u = (r + 0.5) * 2^-52. Finite for every argument: from about -3.6 to 36.7.
double gumbel_noise(std::uint64_t seed, std::uint32_t choice, std::uint64_t position, TokenId token);

// What each stage did to one row, for people who want to see it.
struct SamplerTrace {
  struct Candidate {
    TokenId token;
    double logit;        // raw, from the model
    double probability;  // of the final distribution
    double noise;        // Gumbel noise; 0 when greedy
    double score;        // logit after all stages (of a draw: at most 0, see temperature) + noise
  };
  // Tokens left after each filter. Greedy runs none of them: all tokens above -inf.
  std::size_t kept_top_k = 0, kept_top_p = 0, kept_min_p = 0;
  std::vector<Candidate> candidates;  // best scores first, at most 10
};

// Draws the tokens of one request. Its buffers belong to the thread that calls, and are kept for the next
// call.
class Sampler {
 public:
  // Error(kInvalidArgument) as check_sampling_params.
  Sampler(SamplingParams params, std::int32_t vocab_size);

  // logits [vocab_size], as the model gives them; prompt and output: the sequence so far (for the penalties);
  // position: absolute position of the token being drawn.
  // trace: filled when given.
  // Error(kRuntime) if a logit is NaN or +inf, or all are -inf, as given or after bias and penalties.
  // Error(kInvalidArgument) for a wrong row length or a history id outside the vocabulary.
  TokenId sample(std::span<const float> logits, std::span<const TokenId> prompt,
                 std::span<const TokenId> output, std::uint64_t position,
                 SamplerTrace* trace = nullptr) const;

  // The distribution that sample() draws from, [vocab_size] (temperature 0: one-hot).
  std::vector<double> probabilities(std::span<const float> logits, std::span<const TokenId> prompt,
                                    std::span<const TokenId> output) const;

  const SamplingParams& params() const { return params_; }

 private:
  struct Scratch;
  void check_row(std::span<const float> logits, std::span<const TokenId> prompt,
                 std::span<const TokenId> output) const;
  // Fills the row with the logits after bias and penalties; returns the largest.
  double penalise(Scratch& scratch, std::span<const float> logits, std::span<const TokenId> prompt,
                  std::span<const TokenId> output) const;
  // Temperature and filters on the row, whose largest logit becomes 0.
  void filter(Scratch& scratch, double largest, SamplerTrace* trace) const;

  SamplingParams params_;
  std::int32_t vocab_size_;
};

// ---- Logprobs: of the raw model, whatever the sampling parameters.

// log(sum(exp(logits))) in double, ids ascending. Error(kRuntime) as Sampler::sample.
double log_sum_exp(std::span<const float> logits);

struct Logprobs {
  double chosen;                                // natural log of the model's probability of the chosen token
  std::vector<std::pair<TokenId, double>> top;  // the most probable ones, best first (equal: lowest id first)
};
// Error(kRuntime) as Sampler::sample; Error(kInvalidArgument) if `chosen` is outside the vocabulary.
Logprobs logprobs_of(std::span<const float> logits, TokenId chosen, std::size_t top_n);

// ---- The lab's sampler.

// Supplies a seed and a running position to sample_next: each row drawn uses up one position.
class Generator {
 public:
  explicit Generator(std::uint64_t seed) : seed_(seed) {}
  std::uint64_t seed() const { return seed_; }
  std::uint64_t take_position() { return position_++; }

 private:
  std::uint64_t seed_;
  std::uint64_t position_ = 0;
};

// logits: rows x vocab, row-major. Returns one token a row, row by row with the generator's next position
// (greedy rows use one up, too). Order: temperature, top-k, top-p, min-p, draw. Errors as Sampler's.
std::vector<TokenId> sample_next(std::span<const float> logits, std::size_t rows, double temperature,
                                 std::int64_t top_k, double top_p, double min_p, Generator& generator);

}  // namespace kvasir

#endif  // KVASIR_SAMPLING_H_
