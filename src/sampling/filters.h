// The filters at work: as the public ones in kvasir/sampling.h, for rows known to be sound (no NaN, no +inf,
// a finite maximum) and values known to be in range.
#ifndef KVASIR_SAMPLING_FILTERS_H_
#define KVASIR_SAMPLING_FILTERS_H_

#include <cstdint>
#include <span>

#include "kvasir/sampling.h"

namespace kvasir {

// A mass or probability that misses its threshold by no more than this share of it counts as having reached
// it. Thresholds such as 0.9 or 0.2 x 0.5 are round numbers that real masses meet exactly, up to the rounding
// of logarithms, exps and sums (for a vocabulary of 2^18 below 2^-34 at the very worst, near 2^-50 in
// practice): without slack, rounding would decide whether {.5, .25, .15} reaches 0.9. Far below any
// difference one could want.
inline constexpr double kThresholdSlack = 0x1p-40;

void keep_top_k(std::span<double> row, std::int64_t k);
void keep_top_p(std::span<double> row, double p, double largest);
void keep_min_p(std::span<double> row, double min_p, double largest);

}  // namespace kvasir

#endif  // KVASIR_SAMPLING_FILTERS_H_
