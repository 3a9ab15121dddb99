#include "kernels/peaks.h"

#include <gtest/gtest.h>

#include <cmath>

namespace kvasir::kernels {
namespace {

// What no processor reaches on one thread: two instructions of 512 bits a cycle at 8 GHz. A loop that the
// compiler has emptied exceeds it by far.
constexpr double kInstructions = 2 * 8e9;
constexpr double kMostFloat = kInstructions * 16 * 2, kMostBF16 = 2 * kMostFloat, kMostInt8 = 4 * kMostFloat;

TEST(Peaks, OfEveryKernelSetArePlausible) {
  const PeakMeter meter;
  for (const int threads : {1, 2}) {
    ThreadPool pool(threads);
    for (const KernelSet* set : available_kernels()) {
      for (const auto& [inputs, most] : {std::pair(InputKind::kFloat, kMostFloat),
                                         {InputKind::kBF16, kMostBF16},
                                         {InputKind::kInt8, kMostInt8}}) {
        const double rate = meter.operations(*set, inputs, pool);
        EXPECT_GT(rate, 1e6) << set->name;
        EXPECT_LT(rate, most * threads) << set->name;
      }
    }
  }
}

TEST(Peaks, ReadBandwidthIsPlausible) {
  const PeakMeter meter;
  for (const int threads : {1, 2}) {
    ThreadPool pool(threads);
    const double rate = meter.read_bandwidth(pool);
    EXPECT_GT(rate, 1e7);
    EXPECT_LT(rate, 1e12);
  }
}

}  // namespace
}  // namespace kvasir::kernels
