#include "sampling/row.h"

#include <fmt/format.h>

#include <cstdint>
#include <type_traits>

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
  // Independent maxima, which the compiler puts into vectors, if there are so many and no branches.
  constexpr std::size_t kLanes = 32;
  using Flag = std::conditional_t<sizeof(T) == 4, std::int32_t, std::int64_t>;  // as wide as a number
  std::array<T, kLanes> largest;
  std::array<Flag, kLanes> spoilt{};  // by a NaN or +inf
  largest.fill(-kInfinity);
  const auto visit = [&](const T* values, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) largest[i] = largest[i] < values[i] ? values[i] : largest[i];
    for (std::size_t i = 0; i < count; ++i) spoilt[i] |= values[i] < kInfinity ? 0 : 1;
  };
  std::size_t begin = 0;
  for (; begin + kLanes <= row.size(); begin += kLanes) visit(row.data() + begin, kLanes);
  visit(row.data() + begin, row.size() - begin);

  const T result = *std::max_element(largest.begin(), largest.end());
  const bool good = std::all_of(spoilt.begin(), spoilt.end(), [](Flag flag) { return flag == 0; });
  if (!good || result == -kInfinity) refuse(row, what);
  return result;
}

}  // namespace

double checked_max(std::span<const double> row, const char* what) { return checked_max_of(row, what); }
double checked_max(std::span<const float> row, const char* what) { return checked_max_of(row, what); }

}  // namespace kvasir
