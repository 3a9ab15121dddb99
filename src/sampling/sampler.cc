#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/elementary.h"
#include "base/float_environment.h"
#include "kvasir/error.h"
#include "kvasir/sampling.h"
#include "sampling/filters.h"
#include "sampling/gumbel.h"
#include "sampling/penalties.h"
#include "sampling/row.h"

namespace kvasir {
namespace {

void check_history(std::span<const TokenId> ids, std::int32_t vocab_size, const char* name) {
  for (const TokenId id : ids) {
    if (id < 0 || id >= vocab_size) {
      throw Error(
          ErrorKind::kInvalidArgument,
          fmt::format("the {} has the token id {}, the vocabulary has 0 to {}", name, id, vocab_size - 1));
    }
  }
}

std::size_t count_kept(std::span<const double> row) {
  return static_cast<std::size_t>(
      std::count_if(row.begin(), row.end(), [](double logit) { return logit > kDropped; }));
}

// The candidates with the best scores. noise_of: the noise of a token.
template <class NoiseOf>
std::vector<SamplerTrace::Candidate> best_candidates(std::span<const double> row,
                                                     std::span<const float> logits, NoiseOf noise_of) {
  constexpr std::size_t kShown = 10;
  std::vector<SamplerTrace::Candidate> candidates;
  for (std::size_t i = 0; i < row.size(); ++i) {
    if (row[i] == kDropped) continue;
    const auto token = static_cast<TokenId>(i);
    const double noise = noise_of(token);
    candidates.push_back({token, static_cast<double>(logits[i]), 0.0, noise, row[i] + noise});
  }
  const std::size_t n = std::min(kShown, candidates.size());
  std::partial_sort(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(n), candidates.end(),
                    [](const auto& a, const auto& b) {
                      return a.score > b.score || (a.score == b.score && a.token < b.token);
                    });
  candidates.resize(n);
  return candidates;
}

void trace_greedy(std::span<const double> row, std::span<const float> logits, SamplerTrace& trace) {
  trace.kept_top_k = trace.kept_top_p = trace.kept_min_p = count_kept(row);
  trace.candidates = best_candidates(row, logits, [](TokenId) { return 0.0; });
  trace.candidates.front().probability = 1.0;
}

void trace_draw(std::span<const double> row, std::span<const float> logits, const NoiseSource& source,
                SamplerTrace& trace) {
  trace.candidates = best_candidates(row, logits, [&](TokenId token) {
    return gumbel_noise(source.seed, source.choice, source.position, token);
  });
  const double total = sum_exp(row, 0.0);
  for (auto& candidate : trace.candidates) {
    candidate.probability = defined_exp(row[static_cast<std::size_t>(candidate.token)]) / total;
  }
}

}  // namespace

Sampler::Sampler(SamplingParams params, std::int32_t vocab_size)
    : params_(std::move(params)), vocab_size_(vocab_size) {
  check_sampling_params(params_, vocab_size);
  row_.resize(static_cast<std::size_t>(vocab_size));
  counts_.resize(static_cast<std::size_t>(vocab_size));
}

double Sampler::penalise(std::span<const float> logits, std::span<const TokenId> prompt,
                         std::span<const TokenId> output) {
  if (logits.size() != row_.size()) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("a row of {} logits for a vocabulary of {}", logits.size(), row_.size()));
  }
  check_history(prompt, vocab_size_, "prompt");
  check_history(output, vocab_size_, "output");
  const double largest = checked_max(logits, "the model's logits");
  std::copy(logits.begin(), logits.end(), row_.begin());
  if (!apply_bias_and_penalties(row_, params_, prompt, output, counts_)) return largest;
  return checked_max(std::span<const double>(row_), "the logits after logit_bias and penalties");
}

void Sampler::filter(double largest, SamplerTrace* trace) {
  // (l - largest) / T: the same softmax as l / T, but no temperature, however small, can overflow it. At
  // worst tokens that have no chance become -inf; the largest is 0 from here on, through all filters.
  for (double& logit : row_) logit = (logit - largest) / params_.temperature;
  keep_top_k(row_, params_.top_k);
  if (trace != nullptr) trace->kept_top_k = count_kept(row_);
  keep_top_p(row_, params_.top_p, 0.0);
  if (trace != nullptr) trace->kept_top_p = count_kept(row_);
  keep_min_p(row_, params_.min_p, 0.0);
  if (trace != nullptr) trace->kept_min_p = count_kept(row_);
}

TokenId Sampler::sample(std::span<const float> logits, std::span<const TokenId> prompt,
                        std::span<const TokenId> output, std::uint64_t position, SamplerTrace* trace) {
  return with_defined_floats([&] {
    const double largest = penalise(logits, prompt, output);
    if (params_.temperature == 0.0) {
      if (trace != nullptr) trace_greedy(row_, logits, *trace);
      return first_of(row_, largest);
    }
    filter(largest, trace);
    const NoiseSource source{params_.seed, params_.choice, position};
    if (trace != nullptr) trace_draw(row_, logits, source, *trace);
    return draw_token(row_, first_of(row_, 0.0), source);
  });
}

std::vector<double> Sampler::probabilities(std::span<const float> logits, std::span<const TokenId> prompt,
                                           std::span<const TokenId> output) {
  return with_defined_floats([&] {
    const double largest = penalise(logits, prompt, output);
    if (params_.temperature == 0.0) {
      std::vector<double> one_hot(row_.size(), 0.0);
      one_hot[static_cast<std::size_t>(first_of(row_, largest))] = 1.0;
      return one_hot;
    }
    filter(largest, nullptr);
    std::vector<double> result = row_;
    const double total = sum_exp(std::span<const double>(row_), 0.0);
    defined_exp_all(result);
    for (double& probability : result) probability /= total;
    return result;
  });
}

std::vector<TokenId> sample_next(std::span<const float> logits, std::size_t rows, double temperature,
                                 std::int64_t top_k, double top_p, double min_p, Generator& generator) {
  if (rows == 0 || logits.empty() || logits.size() % rows != 0) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("{} logits cannot be {} rows of one vocabulary", logits.size(), rows));
  }
  const std::size_t vocab = logits.size() / rows;
  SamplingParams params;
  params.temperature = temperature;
  params.top_k = top_k;
  params.top_p = top_p;
  params.min_p = min_p;
  params.seed = generator.seed();
  Sampler sampler(std::move(params), static_cast<std::int32_t>(vocab));
  std::vector<TokenId> tokens(rows);
  for (std::size_t row = 0; row < rows; ++row) {
    tokens[row] = sampler.sample(logits.subspan(row * vocab, vocab), {}, {}, generator.take_position());
  }
  return tokens;
}

}  // namespace kvasir
