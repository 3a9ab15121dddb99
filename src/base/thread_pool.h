// A fixed set of threads that share out the pieces of one piece of work at a time.
//
// Each thread has a share of consecutive pieces, the same share of every job: what it wrote in one job lies
// in its cache when the next one reads it, and threads do not contend for a counter (between cores that share
// no cache, each access to one costs as much as a small piece). Who is done takes from the end of the others'
// shares, so that a thread which the operating system holds up delays only the piece it has in hand. Between
// two jobs a worker spins for some 20 microseconds and then sleeps: an idle program burns no processor time,
// and on a busy machine nobody spins against the thread that it waits for.
#ifndef KVASIR_BASE_THREAD_POOL_H_
#define KVASIR_BASE_THREAD_POOL_H_

#include <atomic>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>

namespace kvasir {

// One thread at a time may call parallel_for. The caller works too: a pool of n threads starts n - 1.
class ThreadPool {
 public:
  explicit ThreadPool(int threads);  // at least 1
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Which of a pool's threads calls: 1 to threads() - 1; the one that called parallel_for has 0.
  static int worker() { return worker_; }
  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls fn(i) once for each i in [0, pieces), and returns when all calls have returned. Who has nothing to
  // wait for runs a share of them in ascending order. fn must not throw. pieces < 2^32.
  template <class F>
  void parallel_for(std::int64_t pieces, F&& fn) {
    using Fn = std::remove_reference_t<F>;
    run(
        pieces, [](void* context, std::int64_t piece) { (*static_cast<Fn*>(context))(piece); },
        const_cast<void*>(static_cast<const void*>(&fn)));
  }

 private:
  class AsCaller;
  using Call = void (*)(void* context, std::int64_t piece);

  // Consecutive pieces that nobody has taken yet: the first (low half) and the end (high half), in one word.
  // Whoever changes it from one state to the next has a piece of the job that it belongs to, however late.
  struct alignas(64) Share {
    std::atomic<std::uint64_t> pieces{0};
    bool take_first(std::int64_t& piece);
    bool take_last(std::int64_t& piece);
  };

  void run(std::int64_t pieces, Call call, void* context);
  void work(int worker);
  void take_and_run_all();
  bool take(std::int64_t& piece);

  std::vector<Share> shares_;  // of each thread
  alignas(64) std::atomic<std::uint32_t> jobs_{0};
  std::atomic<bool> stopping_{false};
  Call call_ = nullptr;  // these three are written only while no job runs
  void* context_ = nullptr;
  std::int64_t pieces_ = 0;
  alignas(64) std::atomic<std::int64_t> finished_{0};  // pieces of the current job that have returned
  std::vector<std::thread> workers_;
  static thread_local int worker_;
};

// How many threads this process may keep busy: its processor affinity, and no more than its cgroup's quota.
int usable_processors();

}  // namespace kvasir

#endif  // KVASIR_BASE_THREAD_POOL_H_
