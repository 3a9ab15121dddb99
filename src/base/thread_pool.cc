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

constexpr int kSpins = 2000;  // some 20 microseconds: what a thread waits for another's last piece

constexpr std::uint64_t kOneFromEnd = std::uint64_t{1} << 32;

std::uint64_t first_of(std::uint64_t share) { return share % kOneFromEnd; }
std::uint64_t end_of(std::uint64_t share) { return share / kOneFromEnd; }

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
  shares_ = std::vector<Share>(static_cast<std::size_t>(threads));
  workers_.reserve(static_cast<std::size_t>(threads - 1));
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
}

ThreadPool::~ThreadPool() {
  stopping_.store(true);
  jobs_.fetch_add(1);  // every waiter looks up
  jobs_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

bool ThreadPool::Share::take_first(std::int64_t& piece) {
  std::uint64_t share = pieces.load(std::memory_order_acquire);
  while (first_of(share) < end_of(share)) {
    if (pieces.compare_exchange_weak(share, share + 1, std::memory_order_acq_rel)) {
      piece = static_cast<std::int64_t>(first_of(share));
      return true;
    }
  }
  return false;
}

bool ThreadPool::Share::take_last(std::int64_t& piece) {
  std::uint64_t share = pieces.load(std::memory_order_acquire);
  while (first_of(share) < end_of(share)) {
    if (pieces.compare_exchange_weak(share, share - kOneFromEnd, std::memory_order_acq_rel)) {
      piece = static_cast<std::int64_t>(end_of(share)) - 1;
      return true;
    }
  }
  return false;
}

bool ThreadPool::take(std::int64_t& piece) {
  const auto mine = static_cast<std::size_t>(worker_);
  if (shares_[mine].take_first(piece)) return true;
  for (std::size_t i = 1; i < shares_.size(); ++i) {
    if (shares_[(mine + i) % shares_.size()].take_last(piece)) return true;
  }
  return false;
}

// What this thread has run is counted at its end, and no job ends before: all pieces are of one job.
void ThreadPool::take_and_run_all() {
  std::int64_t piece = 0;
  if (!take(piece)) return;
  const std::int64_t pieces = pieces_;
  std::int64_t ran = 0;
  do {
    call_(context_, piece);
    ++ran;
  } while (take(piece));
  if (finished_.fetch_add(ran, std::memory_order_acq_rel) + ran == pieces) finished_.notify_all();
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
  pieces_ = pieces;
  finished_.store(0, std::memory_order_relaxed);
  const auto threads = static_cast<std::int64_t>(shares_.size());
  for (std::int64_t i = 0; i < threads; ++i) {
    const auto first = static_cast<std::uint64_t>(pieces * i / threads);
    const auto end = static_cast<std::uint64_t>(pieces * (i + 1) / threads);
    shares_[static_cast<std::size_t>(i)].pieces.store(end * kOneFromEnd | first, std::memory_order_release);
  }
  jobs_.fetch_add(1);
  jobs_.notify_all();
  take_and_run_all();
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
    const std::uint32_t seen = jobs_.load(std::memory_order_acquire);
    take_and_run_all();
    bool changed = false;
    for (int spin = 0; spin < kSpins && !changed; ++spin) {
      pause();
      changed = jobs_.load(std::memory_order_acquire) != seen;
    }
    if (!changed && !stopping_.load()) jobs_.wait(seen, std::memory_order_acquire);
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
