#include "base/thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <string>
#include <utility>

#include "base/float_environment.h"
#include "kvasir/error.h"

namespace kvasir {
namespace {

constexpr int kCountBits = 24;
constexpr std::uint64_t kCountMask = (std::uint64_t{1} << kCountBits) - 1;
constexpr int kSpins = 2000;  // some 20 microseconds: what a thread waits for another's last piece

std::uint64_t next_piece(std::uint64_t ticket) { return ticket & kCountMask; }
std::uint64_t pieces_of(std::uint64_t ticket) { return (ticket >> kCountBits) & kCountMask; }
std::uint64_t generation_of(std::uint64_t ticket) { return ticket >> (2 * kCountBits); }

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#else
  asm volatile("yield");
#endif
}

}  // namespace

thread_local int ThreadPool::worker_ = 0;

ThreadPool::ThreadPool(int threads) {
  if (threads < 1) throw Error(ErrorKind::kInvalidArgument, "threads must be at least 1");
  workers_.reserve(static_cast<std::size_t>(threads - 1));
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
}

ThreadPool::~ThreadPool() {
  stopping_.store(true);
  ticket_.fetch_add(std::uint64_t{1} << (2 * kCountBits));  // a new generation: every waiter looks up
  ticket_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

bool ThreadPool::take_and_run_one() {
  std::uint64_t ticket = ticket_.load(std::memory_order_acquire);
  while (next_piece(ticket) < pieces_of(ticket)) {
    if (ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel)) {
      call_(context_, static_cast<std::int64_t>(next_piece(ticket)));
      const auto pieces = static_cast<std::int64_t>(pieces_of(ticket));
      if (finished_.fetch_add(1, std::memory_order_acq_rel) + 1 == pieces) finished_.notify_all();
      return true;
    }
  }
  return false;
}

// The caller may be another pool's worker.
class ThreadPool::AsCaller {
 public:
  AsCaller() : outer_(std::exchange(worker_, 0)) {}
  ~AsCaller() { worker_ = outer_; }
  AsCaller(const AsCaller&) = delete;
  AsCaller& operator=(const AsCaller&) = delete;

 private:
  int outer_;
};

void ThreadPool::run(std::int64_t pieces, Call call, void* context) {
  if (pieces <= 0) return;
  const AsCaller as_caller;
  if (workers_.empty() || pieces == 1) {
    for (std::int64_t i = 0; i < pieces; ++i) call(context, i);
    return;
  }
  call_ = call;
  context_ = context;
  finished_.store(0, std::memory_order_relaxed);
  const std::uint64_t generation = generation_of(ticket_.load(std::memory_order_relaxed)) + 1;
  ticket_.store((generation << (2 * kCountBits)) | (static_cast<std::uint64_t>(pieces) << kCountBits),
                std::memory_order_release);
  ticket_.notify_all();
  while (take_and_run_one()) {
  }
  for (int spin = 0; spin < kSpins; ++spin) {
    if (finished_.load(std::memory_order_acquire) == pieces) return;
    pause();
  }
  for (std::int64_t done = finished_.load(std::memory_order_acquire); done != pieces;
       done = finished_.load(std::memory_order_acquire)) {
    finished_.wait(done, std::memory_order_acquire);
  }
}

void ThreadPool::work(int worker) {
  worker_ = worker;
  const FloatEnvironment environment;
  while (!stopping_.load()) {
    if (take_and_run_one()) continue;
    const std::uint64_t seen = ticket_.load(std::memory_order_acquire);
    if (next_piece(seen) < pieces_of(seen)) continue;
    bool changed = false;
    for (int spin = 0; spin < kSpins && !changed; ++spin) {
      pause();
      changed = ticket_.load(std::memory_order_acquire) != seen;
    }
    if (!changed && !stopping_.load()) ticket_.wait(seen, std::memory_order_acquire);
  }
}

int usable_processors() {
  cpu_set_t set;
  CPU_ZERO(&set);
  int processors = sched_getaffinity(0, sizeof set, &set) == 0
                       ? CPU_COUNT(&set)
                       : static_cast<int>(std::thread::hardware_concurrency());
  std::ifstream quota_file(
      "/sys/fs/cgroup/cpu.max");  // cgroup v2: "quota period" in microseconds, or "max period"
  std::string quota;
  double period = 0;
  if (quota_file >> quota >> period && quota != "max" && period > 0) {
    const double share = std::stod(quota) / period;
    processors = std::min(processors, static_cast<int>(std::ceil(share)));
  }
  return std::max(processors, 1);
}

}  // namespace kvasir
