#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <ctime>
#include <numeric>
#include <vector>

#include "kvasir/error.h"

namespace kvasir {
namespace {

TEST(ThreadPool, RunsEveryPieceExactlyOnce) {
  for (int threads : {1, 2, 3, 7}) {
    ThreadPool pool(threads);
    EXPECT_EQ(pool.threads(), threads);
    for (int pieces : {0, 1, 2, 3, 64, 1000}) {
      std::vector<std::atomic<int>> runs(static_cast<std::size_t>(pieces));
      pool.parallel_for(pieces, [&](std::int64_t i) { runs[static_cast<std::size_t>(i)].fetch_add(1); });
      for (const auto& count : runs)
        ASSERT_EQ(count.load(), 1) << threads << " threads, " << pieces << " pieces";
    }
  }
}

TEST(ThreadPool, ManySmallJobsInARowDoNotMixUp) {
  ThreadPool pool(3);
  std::vector<std::int64_t> values(17);
  for (std::int64_t job = 0; job < 20000; ++job) {
    pool.parallel_for(17, [&](std::int64_t i) { values[static_cast<std::size_t>(i)] = job * 100 + i; });
    const std::int64_t sum = std::accumulate(values.begin(), values.end(), std::int64_t{0});
    ASSERT_EQ(sum, 17 * job * 100 + 136);
  }
}

TEST(ThreadPool, AThreadThatIsHeldUpDelaysOnlyThePieceInHand) {
  constexpr int kPieces = 64;
  ThreadPool pool(2);
  for (const int held_up : {0, kPieces / 2}) {  // the first of a thread's share
    std::atomic<int> others{0};
    bool in_time = false;
    pool.parallel_for(kPieces, [&](std::int64_t i) {
      if (i != held_up) {
        ++others;
        return;
      }
      const timespec pause{0, 1'000'000};
      for (int wait = 0; wait < 10'000 && others < kPieces - 1; ++wait) nanosleep(&pause, nullptr);
      in_time = others == kPieces - 1;
    });
    EXPECT_TRUE(in_time) << "piece " << held_up;
  }
}

TEST(ThreadPool, AnIdlePoolUsesNoProcessorTime) {
  ThreadPool pool(4);
  pool.parallel_for(8, [](std::int64_t) {});
  timespec pause{0, 50'000'000};
  nanosleep(&pause, nullptr);  // let the spins run out
  const std::clock_t before = std::clock();
  pause.tv_nsec = 300'000'000;
  nanosleep(&pause, nullptr);
  const double used_seconds = static_cast<double>(std::clock() - before) / CLOCKS_PER_SEC;
  EXPECT_LT(used_seconds, 0.05);
}

TEST(ThreadPool, RefusesZeroThreads) { EXPECT_THROW(ThreadPool(0), Error); }

TEST(UsableProcessors, IsAtLeastOne) { EXPECT_GE(usable_processors(), 1); }

TEST(ThreadPool, EachThreadHasItsNumberAlsoInsideOfAnotherPool) {
  ThreadPool outer(3);
  std::atomic<int> wrong{0};
  outer.parallel_for(30, [&](std::int64_t /*piece*/) {
    const int number = ThreadPool::worker();
    if (number < 0 || number >= 3) ++wrong;
    ThreadPool inner(2);
    inner.parallel_for(8, [&](std::int64_t /*piece*/) {
      if (ThreadPool::worker() < 0 || ThreadPool::worker() >= 2) ++wrong;
    });
    if (ThreadPool::worker() != number) ++wrong;
  });
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(ThreadPool::worker(), 0);
}

}  // namespace
}  // namespace kvasir
