#include "sampling/row.h"

#include <fmt/format.h>

#include "kvasir/error.h"

namespace kvasir {
namespace {

template <class T>
[[noreturn]] void refuse(std::span<const T> row, const char* what) {
  constexpr T kInfinity = std::numeric_limits<T>::infinity();
  for (std::size_t i = 0; i < row.size(); ++i) {
    if (!(row[i] < kInfinity)) {
      throw Error(ErrorKind::kRuntime, fmt::format("{}: token {} has the value {}, no token can be drawn",
                                                   what, i, static_cast<double>(row[i])));
    }
  }
  throw Error(ErrorKind::kRuntime, fmt::format("{}: every token is at -inf, no token can be drawn", what));
}

template <class T>
double checked_max_of(std::span<const T> row, const char* what) {
  constexpr T kInfinity = std::numeric_limits<T>::infinity();
  constexpr std::size_t kLanes = 16;  // independent maxima, so that they can share vectors
  std::array<T, kLanes> largest;
  std::array<T, kLanes> spoilt{};  // stays 0 while no NaN or +inf was seen: such a value turns it into NaN
  largest.fill(-kInfinity);
  const auto visit = [&](T value, std::size_t lane) {
    largest[lane] = largest[lane] < value ? value : largest[lane];
    const T above = value < T{0} ? T{0} : value;
    spoilt[lane] += above - above;
  };
  std::size_t i = 0;
  for (; i + kLanes <= row.size(); i += kLanes) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) visit(row[i + lane], lane);
  }
  for (; i < row.size(); ++i) visit(row[i], 0);

  T result = -kInfinity;
  T sum{};
  for (std::size_t lane = 0; lane < kLanes; ++lane) {
    result = std::max(result, largest[lane]);
    sum += spoilt[lane];
  }
  if (sum != T{0} || result == -kInfinity) refuse(row, what);
  return result;
}

}  // namespace

double checked_max(std::span<const double> row, const char* what) { return checked_max_of(row, what); }
double checked_max(std::span<const float> row, const char* what) { return checked_max_of(row, what); }

}  // namespace kvasir
