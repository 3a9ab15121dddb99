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

// Of a thread: many samplers take turns.
struct Sampler::Scratch {
  std::vector<double> row;           // [vocab_size] the row in work
  std::vector<std::int32_t> counts;  // [vocab_size] of the penalties, zero between calls

  static Scratch& of_size(std::int32_t vocab_size) {
    thread_local Scratch scratch;
    scratch.row.resize(static_cast<std::size_t>(vocab_size));
    scratch.counts.resize(static_cast<std::size_t>(vocab_size));
    return scratch;
  }
};

Sampler::Sampler(SamplingParams params, std::int32_t vocab_size)
    : params_(std::move(params)), vocab_size_(vocab_size) {
  check_sampling_params(params_, vocab_size);
}

void Sampler::check_row(std::span<const float> logits, std::span<const TokenId> prompt,
                        std::span<const TokenId> output) const {
  if (std::ssize(logits) != vocab_size_) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("a row of {} logits for a vocabulary of {}", logits.size(), vocab_size_));
  }
  check_history(prompt, vocab_size_, "prompt");
  check_history(output, vocab_size_, "output");
}

double Sampler::penalise(Scratch& scratch, std::span<const float> logits, std::span<const TokenId> prompt,
                         std::span<const TokenId> output) const {
  const double largest = checked_max(logits, "the model's logits");
  std::copy(logits.begin(), logits.end(), scratch.row.begin());
  if (!changes_logits(params_)) return largest;
  apply_bias_and_penalties(scratch.row, params_, prompt, output, scratch.counts);
  return checked_max(std::span<const double>(scratch.row), "the logits after logit_bias and penalties");
}

void Sampler::filter(Scratch& scratch, double largest, SamplerTrace* trace) const {
  std::vector<double>& row = scratch.row;
  // (l - largest) / T: the same softmax as l / T, but no temperature, however small, can overflow it. At
  // worst tokens that have no chance become -inf; the largest is 0 from here on, through all filters.
  for (double& logit : row) logit = (logit - largest) / params_.temperature;
  keep_top_k(row, params_.top_k);
  if (trace != nullptr) trace->kept_top_k = count_kept(row);
  keep_top_p(row, params_.top_p, 0.0);
  if (trace != nullptr) trace->kept_top_p = count_kept(row);
  keep_min_p(row, params_.min_p, 0.0);
  if (trace != nullptr) trace->kept_min_p = count_kept(row);
}

TokenId Sampler::sample(std::span<const float> logits, std::span<const TokenId> prompt,
                        std::span<const TokenId> output, std::uint64_t position, SamplerTrace* trace) const {
  check_row(logits, prompt, output);
  return with_defined_floats([&] {
    const bool greedy = params_.temperature == 0.0;
    if (greedy && trace == nullptr && !changes_logits(params_)) {
      return first_of(logits, static_cast<float>(checked_max(logits, "the model's logits")));
    }
    Scratch& scratch = Scratch::of_size(vocab_size_);
    const double largest = penalise(scratch, logits, prompt, output);
    const std::span<const double> row(scratch.row);
    if (greedy) {
      if (trace != nullptr) trace_greedy(row, logits, *trace);
      return first_of(row, largest);
    }
    filter(scratch, largest, trace);
    const NoiseSource source{params_.seed, params_.choice, position};
    if (trace != nullptr) trace_draw(row, logits, source, *trace);
    return draw_token(row, first_of(row, 0.0), source);
  });
}

std::vector<double> Sampler::probabilities(std::span<const float> logits, std::span<const TokenId> prompt,
                                           std::span<const TokenId> output) const {
  check_row(logits, prompt, output);
  return with_defined_floats([&] {
    Scratch& scratch = Scratch::of_size(vocab_size_);
    const double largest = penalise(scratch, logits, prompt, output);
    if (params_.temperature == 0.0) {
      std::vector<double> one_hot(scratch.row.size(), 0.0);
      one_hot[static_cast<std::size_t>(first_of(std::span<const double>(scratch.row), largest))] = 1.0;
      return one_hot;
    }
    filter(scratch, largest, nullptr);
    std::vector<double> result = scratch.row;
    const double total = sum_exp(std::span<const double>(scratch.row), 0.0);
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
  const Sampler sampler(std::move(params), static_cast<std::int32_t>(vocab));
  std::vector<TokenId> tokens(rows);
  for (std::size_t row = 0; row < rows; ++row) {
    tokens[row] = sampler.sample(logits.subspan(row * vocab, vocab), {}, {}, generator.take_position());
  }
  return tokens;
}

}  // namespace kvasir
