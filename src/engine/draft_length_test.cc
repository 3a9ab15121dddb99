#include "engine/draft_length.h"

#include <gtest/gtest.h>

namespace kvasir {
namespace {

TEST(DraftLength, GrowsWithRightGuessesAndShrinksWithWrongOnes) {
  DraftLength length;
  EXPECT_EQ(length.next(0.1), 4);
  length.note(4, 4);
  EXPECT_EQ(length.next(0.1), 8);
  for (int i = 0; i < 5; ++i) length.note(length.next(0.1), length.next(0.1));
  EXPECT_EQ(length.next(0.1), 12);
  length.note(12, 9);
  EXPECT_EQ(length.next(0.1), 10);
  length.note(0, 0);
  EXPECT_EQ(length.next(0.1), 10);
  length.note(10, 2);
  EXPECT_EQ(length.next(0.1), 5);
  for (int i = 0; i < 3; ++i) length.note(length.next(0.0), 0);
  EXPECT_EQ(length.next(0.0), 1);
}

TEST(DraftLength, IsNoneWhereGuessesCostMoreThanTheyBring) {
  DraftLength length;
  for (int i = 0; i < 20; ++i) length.note(2, 1);  // half of them are right
  EXPECT_EQ(length.next(0.4), 2);
  EXPECT_EQ(length.next(0.6), 0);
  for (int i = 0; i < 8; ++i) length.note(2, 0);
  EXPECT_EQ(length.next(0.15), 0);
  EXPECT_EQ(length.next(0.0), 1);
}

TEST(DraftLength, AGuessAmongManyTokensCostsAlmostAToken) {
  EXPECT_DOUBLE_EQ(guess_cost(1), 0.15);
  for (int n = 1; n < 64; ++n) EXPECT_LT(guess_cost(n), guess_cost(n + 1));
  EXPECT_GT(guess_cost(64), 0.9);
  EXPECT_LT(guess_cost(64), 1.0);
}

}  // namespace
}  // namespace kvasir
