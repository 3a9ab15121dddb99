// What several stages need to know of one row of logits. ("Row": the logits of all tokens at one place,
// [vocab].)
#ifndef KVASIR_SAMPLING_ROW_H_
#define KVASIR_SAMPLING_ROW_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <span>

#include "base/elementary.h"
#include "kvasir/token.h"

namespace kvasir {

inline constexpr double kDropped = -std::numeric_limits<double>::infinity();

// The largest logit. Error(kRuntime) that begins with `what` if the row is empty, holds a NaN or +inf, or
// only -inf.
double checked_max(std::span<const double> row, const char* what);
double checked_max(std::span<const float> row, const char* what);

// The lowest id whose logit is the largest one. The row must hold `largest`.
template <class T>
TokenId first_of(std::span<const T> row, T largest) {
  return static_cast<TokenId>(std::find(row.begin(), row.end(), largest) - row.begin());
}

// visit(logit - largest, exp(logit - largest)) for each finite logit, in ascending id order.
template <class T, class Visit>
void visit_exps(std::span<const T> row, double largest, Visit visit) {
  constexpr std::size_t kBlock = 256;  // numbers; exps are computed for so many together
  std::array<double, kBlock> differences;
  std::array<double, kBlock> exps;
  for (std::size_t i = 0; i < row.size();) {
    std::size_t n = 0;
    for (; i < row.size() && n < kBlock; ++i) {
      differences[n] = static_cast<double>(row[i]) - largest;
      n += differences[n] > kDropped ? 1 : 0;
    }
    std::copy_n(differences.begin(), n, exps.begin());
    defined_exp_all(std::span(exps).first(n));
    for (std::size_t j = 0; j < n; ++j) visit(differences[j], exps[j]);
  }
}

// Sum of exp(logit - largest) over the finite logits, one after the other in ascending id order.
template <class T>
double sum_exp(std::span<const T> row, double largest) {
  double sum = 0.0;
  visit_exps(row, largest, [&sum](double, double mass) { sum += mass; });
  return sum;
}

}  // namespace kvasir

#endif  // KVASIR_SAMPLING_ROW_H_
