#include "engine/measure.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "kvasir/error.h"

namespace kvasir {

void check_list(const char* name, std::span<const std::int64_t> values, std::int64_t least) {
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  if (values.empty()) throw Error(ErrorKind::kInvalidArgument, fmt::format("{}: the list is empty", name));
  for (const std::int64_t value : values) {
    if (value < least || value > kMost) {
      throw Error(ErrorKind::kInvalidArgument,
                  fmt::format("{} is {}, must be {} to {}", name, value, least, kMost));
    }
  }
}

std::vector<TokenId> random_tokens(std::int64_t count, std::int32_t vocab_size, std::uint32_t seed) {
  std::minstd_rand random(seed);
  std::vector<TokenId> tokens(static_cast<std::size_t>(count));
  for (TokenId& token : tokens) {
    token = static_cast<TokenId>(random() % static_cast<std::uint32_t>(vocab_size));
  }
  return tokens;
}

double percentile(std::span<const double> values, double share) {
  if (values.empty() || !(share >= 0.0 && share <= 1.0)) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("percentile: {} values, share {}", values.size(), share));
  }
  std::vector<double> sorted(values.begin(), values.end());
  std::ranges::sort(sorted);
  const double place = share * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(std::floor(place));
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (place - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

}  // namespace kvasir
