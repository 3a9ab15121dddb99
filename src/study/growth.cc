#include <algorithm>
#include <array>
#include <cmath>

#include "kvasir/study.h"

namespace kvasir {
namespace {

// x of matrix x = right by Gaussian elimination; the matrix is symmetric and positive definite.
std::array<double, 3> solve(std::array<std::array<double, 3>, 3> matrix, std::array<double, 3> right) {
  for (std::size_t pivot = 0; pivot < 3; ++pivot) {
    for (std::size_t row = pivot + 1; row < 3; ++row) {
      const double factor = matrix[row][pivot] / matrix[pivot][pivot];
      for (std::size_t column = pivot; column < 3; ++column) {
        matrix[row][column] -= factor * matrix[pivot][column];
      }
      right[row] -= factor * right[pivot];
    }
  }
  for (std::size_t row = 3; row-- > 0;) {
    for (std::size_t column = row + 1; column < 3; ++column)
      right[row] -= matrix[row][column] * right[column];
    right[row] /= matrix[row][row];
  }
  return right;
}

// Whether the cached path stays faster from n = first on, by more than at n = 1.
std::optional<std::int64_t> measured_crossover(std::span<const double> cached,
                                               std::span<const double> uncached) {
  const auto both = std::min(std::ssize(cached), std::ssize(uncached));
  if (both == 0) return std::nullopt;
  const double noise = std::abs(uncached[0] - cached[0]);
  std::int64_t first = both;
  while (first > 0) {
    const auto i = static_cast<std::size_t>(first - 1);
    if (uncached[i] - cached[i] <= noise) break;
    --first;
  }
  if (first == both) return std::nullopt;
  return first + 1;
}

}  // namespace

std::string_view Growth::dominant(double n) const {
  return std::abs(linear * n) >= std::abs(quadratic * n * n) ? "linear" : "quadratic";
}

// The normal equations, over n / count, so that their numbers are all of one size.
std::optional<Growth> fit_growth(std::span<const double> seconds) {
  if (seconds.size() < 3) return std::nullopt;
  const auto count = static_cast<double>(seconds.size());
  std::array<std::array<double, 3>, 3> matrix{};
  std::array<double, 3> right{};
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    const double x = static_cast<double>(i + 1) / count;
    const std::array<double, 3> powers = {1.0, x, x * x};
    for (std::size_t row = 0; row < 3; ++row) {
      for (std::size_t column = 0; column < 3; ++column) matrix[row][column] += powers[row] * powers[column];
      right[row] += powers[row] * seconds[i];
    }
  }
  const std::array<double, 3> fitted = solve(matrix, right);
  return Growth{fitted[0], fitted[1] / count, fitted[2] / (count * count)};
}

std::optional<Crossover> find_crossover(const CacheCurve& cached, const CacheCurve& uncached,
                                        std::int64_t most_new_tokens) {
  if (const auto measured = measured_crossover(cached.seconds, uncached.seconds)) {
    return Crossover{*measured, true};
  }
  if (!cached.growth || !uncached.growth) return std::nullopt;
  for (std::int64_t n = std::ssize(uncached.seconds) + 1; n <= most_new_tokens; ++n) {
    const auto x = static_cast<double>(n);
    if (cached.growth->at(x) < uncached.growth->at(x)) return Crossover{n, false};
  }
  return std::nullopt;
}

}  // namespace kvasir
