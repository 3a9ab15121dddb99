#include "kvasir/bench.h"

#include <gtest/gtest.h>

#include "kvasir/error.h"

namespace kvasir {
namespace {

TEST(Spread, MedianOfAnOddNumberIsTheMiddleOne) {
  const Spread spread = spread_of(std::vector<double>{5, 1, 9, 2, 3});
  EXPECT_EQ(spread.median, 3);
  EXPECT_EQ(spread.least, 1);
  EXPECT_EQ(spread.most, 9);
}

TEST(Spread, MedianOfAnEvenNumberIsTheMeanOfTheMiddleTwo) {
  EXPECT_EQ(spread_of(std::vector<double>{8, 1, 2, 5}).median, 3.5);
}

TEST(Spread, OfOneValueIsThatValue) {
  const Spread spread = spread_of(std::vector<double>{4});
  EXPECT_EQ(spread.median, 4);
  EXPECT_EQ(spread.least, 4);
  EXPECT_EQ(spread.most, 4);
}

TEST(Spread, OfNothingIsRefused) { EXPECT_THROW(spread_of({}), Error); }

TEST(BenchRow, RatesComeFromTheMedianTime) {
  const BenchRow row{BenchRow::Kind::kDecode, 10, 0, 4, 1, {2, 8, 4}, 100, 1000, {50, 0, 0}, {500, 0, 0}};
  EXPECT_EQ(row.tokens_per_second().median, 10);
  EXPECT_EQ(row.tokens_per_second().least, 5);
  EXPECT_EQ(row.tokens_per_second().most, 20);
  EXPECT_EQ(row.bytes_per_second(), 25);
  EXPECT_EQ(row.operations_per_second(), 250);
  EXPECT_EQ(row.read_share(), 0.5);
  EXPECT_EQ(row.operations_share(), 0.5);
}

TEST(BenchRow, SharesOfTheEngineAreMediansOfTheRepetitions) {
  BenchRow row{BenchRow::Kind::kRequests, 10, 0, 4, 1, {2, 8, 4}, {}, 1000, {50, 0, 0}, {500, 0, 0}};
  row.requests = {.new_tokens = 3,
                  .decode_tokens = 8,
                  .decode_seconds = {1, 4, 2},
                  .schedule_seconds = {1, 1, 1},
                  .draw_seconds = {1, 6, 1}};
  EXPECT_EQ(row.schedule_share(), 0.25);
  EXPECT_EQ(row.draw_share(), 0.5);
  EXPECT_EQ(row.requests->decode_tokens_per_second()->median, 4);
  EXPECT_EQ(row.requests->decode_tokens_per_second()->least, 2);
  EXPECT_EQ(row.requests->decode_tokens_per_second()->most, 8);
  row.requests->decode_tokens = 0;
  EXPECT_FALSE(row.requests->decode_tokens_per_second().has_value());
}

TEST(BenchRow, WhatIsNotDefinedOfAKindIsNothing) {
  const BenchRow pass{BenchRow::Kind::kDecode, 10, 0, 4, 1, {2}, 100, 1000, {50, 0, 0}, {500, 0, 0}};
  EXPECT_EQ(pass.schedule_share(), std::nullopt);
  EXPECT_EQ(pass.draw_share(), std::nullopt);
  const BenchRow requests{BenchRow::Kind::kRequests, 10, 0, 4, 1, {2}, {}, 1000, {50, 0, 0}, {500, 0, 0}};
  EXPECT_EQ(requests.bytes_per_second(), std::nullopt);
  EXPECT_EQ(requests.read_share(), std::nullopt);
}

}  // namespace
}  // namespace kvasir
