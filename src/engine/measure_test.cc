#include "engine/measure.h"

#include <gtest/gtest.h>

#include "kvasir/error.h"

namespace kvasir {
namespace {

TEST(Percentile, EndsAreTheLeastAndTheLargest) {
  const std::vector<double> values = {5, 1, 9, 2, 3};
  EXPECT_EQ(percentile(values, 0.0), 1);
  EXPECT_EQ(percentile(values, 1.0), 9);
}

TEST(Percentile, LiesBetweenNeighboursInOrder) {
  EXPECT_EQ(percentile(std::vector<double>{4, 2}, 0.25), 2.5);
  EXPECT_EQ(percentile(std::vector<double>{30, 10, 20}, 0.75), 25);
  std::vector<double> hundred(101);
  for (std::size_t i = 0; i < hundred.size(); ++i) hundred[i] = static_cast<double>(100 - i);
  EXPECT_DOUBLE_EQ(percentile(hundred, 0.99), 99);
}

TEST(Percentile, OfOneValueIsThatValue) {
  for (const double share : {0.0, 0.5, 0.99, 1.0}) EXPECT_EQ(percentile(std::vector<double>{7}, share), 7);
}

TEST(Percentile, RefusesNothingAndSharesOutOfRange) {
  EXPECT_THROW(percentile({}, 0.5), Error);
  EXPECT_THROW(percentile(std::vector<double>{1}, -0.1), Error);
  EXPECT_THROW(percentile(std::vector<double>{1}, 1.1), Error);
}

}  // namespace
}  // namespace kvasir
