// What everything that measures shares: options checked, tokens to run, times and what is told of them.
#ifndef KVASIR_ENGINE_MEASURE_H_
#define KVASIR_ENGINE_MEASURE_H_

#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "kvasir/token.h"

namespace kvasir {

// Error(kInvalidArgument) naming the list and the first value that is below `least` or fits no int32; or the
// list if it is empty.
void check_list(const char* name, std::span<const std::int64_t> values, std::int64_t least);

// Pseudo-random ids, the same for one seed.
std::vector<TokenId> random_tokens(std::int64_t count, std::int32_t vocab_size, std::uint32_t seed = 1);

inline double seconds_between(std::chrono::steady_clock::time_point start,
                              std::chrono::steady_clock::time_point end) {
  return std::chrono::duration<double>(end - start).count();
}
inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return seconds_between(start, std::chrono::steady_clock::now());
}

// The value below which a share (0 to 1) of at least one value lies: interpolated between its neighbours in
// order, 0 being the least and 1 the largest. Error(kInvalidArgument) for no values or another share.
double percentile(std::span<const double> values, double share);

}  // namespace kvasir

#endif  // KVASIR_ENGINE_MEASURE_H_
