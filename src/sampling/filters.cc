#include "sampling/filters.h"

#include <algorithm>
#include <array>
#include <functional>
#include <tuple>
#include <vector>

#include "base/elementary.h"
#include "base/float_environment.h"
#include "kvasir/error.h"
#include "sampling/row.h"

namespace kvasir {
namespace {

struct Candidate {
  double logit;
  TokenId id;
};

// The order of top-p: most probable first, equal ones by id.
bool comes_before(const Candidate& a, const Candidate& b) {
  return a.logit > b.logit || (a.logit == b.logit && a.id < b.id);
}

// value: k-th largest of the row; k in [1, row.size()].
double kth_largest(std::span<const double> row, std::size_t k) {
  constexpr std::size_t kHeapPays = 1024;  // above, selecting from a copy is faster than a heap of k
  std::vector<double> values(k <= kHeapPays ? k : row.size());
  if (k <= kHeapPays) {
    std::partial_sort_copy(row.begin(), row.end(), values.begin(), values.end(), std::greater<>());
    return values.back();
  }
  std::copy(row.begin(), row.end(), values.begin());
  const auto kth = values.begin() + static_cast<std::ptrdiff_t>(k - 1);
  std::nth_element(values.begin(), kth, values.end(), std::greater<>());
  return *kth;
}

// Unnormalised masses exp(logit - largest) of a row.
struct Masses {
  static constexpr double kBucketsPerUnit = 16;
  double total = 0.0;                   // summed in ascending id order
  std::array<double, 1024> by_depth{};  // by how far below the largest logit; the last takes the rest
};

std::size_t bucket_of(double depth) {
  constexpr double kLast = static_cast<double>(std::tuple_size_v<decltype(Masses::by_depth)> - 1);
  return static_cast<std::size_t>(std::min(depth * Masses::kBucketsPerUnit, kLast));
}

Masses masses_of(std::span<const double> row, double largest) {
  Masses masses;
  visit_exps(row, largest, [&masses](double difference, double mass) {
    masses.total += mass;
    masses.by_depth[bucket_of(-difference)] += mass;
  });
  return masses;
}

// The tokens that top-p may keep, in its order. Only they need sorting: when the buckets from the top have
// reached the threshold together (by more than the rounding of n additions could fake), every token below
// them is dropped.
std::vector<Candidate> top_p_candidates(std::span<const double> row, const Masses& masses, double threshold,
                                        double largest) {
  const double surely = threshold + static_cast<double>(row.size()) * 0x1p-50 * masses.total;
  std::size_t bucket = 0;
  double mass = masses.by_depth[0];
  while (mass < surely && bucket + 1 < masses.by_depth.size()) mass += masses.by_depth[++bucket];

  std::vector<Candidate> candidates;
  for (std::size_t i = 0; i < row.size(); ++i) {
    if (row[i] > kDropped && bucket_of(largest - row[i]) <= bucket) {
      candidates.push_back({row[i], static_cast<TokenId>(i)});
    }
  }
  std::sort(candidates.begin(), candidates.end(), comes_before);
  return candidates;
}

void check_threshold(double value, const char* message) {
  if (value != value) throw Error(ErrorKind::kInvalidArgument, message);
}

// False for a row of nothing but -inf, which a filter leaves as it is.
bool has_finite(std::span<const double> row) {
  return std::any_of(row.begin(), row.end(), [](double logit) { return !(logit == kDropped); });
}

}  // namespace

void keep_top_k(std::span<double> row, std::int64_t k) {
  if (k <= 0 || static_cast<std::uint64_t>(k) >= row.size()) return;
  const double boundary = kth_largest(row, static_cast<std::size_t>(k));
  for (double& logit : row) logit = logit >= boundary ? logit : kDropped;
}

void keep_top_p(std::span<double> row, double p, double largest) {
  if (p >= 1.0) return;
  p = std::max(p, 0.0);
  const Masses masses = masses_of(row, largest);
  const double threshold = p * (1.0 - kThresholdSlack) * masses.total;
  const std::vector<Candidate> candidates = top_p_candidates(row, masses, threshold, largest);
  std::size_t kept = 1;
  double mass_before = 1.0;  // of the next one, summed in sorted order; the first has exp(0)
  while (kept < candidates.size() && mass_before < threshold) {
    mass_before += defined_exp(candidates[kept++].logit - largest);
  }
  const Candidate last = candidates[kept - 1];
  for (std::size_t i = 0; i < row.size(); ++i) {
    if (comes_before(last, {row[i], static_cast<TokenId>(i)})) row[i] = kDropped;
  }
}

void keep_min_p(std::span<double> row, double min_p, double largest) {
  if (min_p <= 0.0) return;
  // p / p_max = exp(logit - largest): compared as logarithms, where the slack is a difference.
  const double lowest = defined_log(min_p) - kThresholdSlack;
  for (double& logit : row) logit = logit - largest >= lowest ? logit : kDropped;
}

void top_k_filter(std::span<double> logits, std::int64_t k) {
  if (!has_finite(logits)) return;
  checked_max(logits, "top_k_filter: logits");
  keep_top_k(logits, k);
}

void top_p_filter(std::span<double> logits, double p) {
  check_threshold(p, "top_p_filter: p is NaN, it must be a number");
  if (!has_finite(logits)) return;
  with_defined_floats([&] { keep_top_p(logits, p, checked_max(logits, "top_p_filter: logits")); });
}

void min_p_filter(std::span<double> logits, double min_p) {
  check_threshold(min_p, "min_p_filter: min_p is NaN, it must be a number");
  if (!has_finite(logits)) return;
  // Above 1 not even the most probable token would be left: as 1.
  with_defined_floats(
      [&] { keep_min_p(logits, std::min(min_p, 1.0), checked_max(logits, "min_p_filter: logits")); });
}

}  // namespace kvasir
