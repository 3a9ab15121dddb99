// What a forward pass runs on: threads, a set of kernels, and memory for intermediate results.
#ifndef KVASIR_EXECUTOR_H_
#define KVASIR_EXECUTOR_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "kvasir/observer.h"

namespace kvasir {

class ThreadPool;
namespace kernels {
struct KernelSet;
}

// One forward at a time; use one Executor a thread that calls. Results do not depend on which one is used.
class Executor {
 public:
  // threads = 0: as many as the process may use (affinity and cgroup quota). kernel_set: "" takes the
  // environment variable KVASIR_ISA, else the fastest set of this machine. Error(kInvalidArgument) for a
  // negative number of threads, one above 1024, or a kernel set that this machine cannot run.
  explicit Executor(int threads = 0, const std::string& kernel_set = "");
  // With any set of kernels, which must outlive the executor and run on this machine.
  Executor(int threads, const kernels::KernelSet& kernel_set);
  ~Executor();
  Executor(Executor&&) noexcept;
  Executor& operator=(Executor&&) noexcept;

  ThreadPool& pool() { return *pool_; }
  const kernels::KernelSet& kernels() const { return *kernels_; }
  int threads() const;

  // Intermediate results, kept from one forward to the next so that a warm decode loop allocates nothing.
  enum class Buffer {
    kResidual,
    kNormed,
    kProjected,
    kQuery,
    kKey,
    kValue,
    kAttended,
    kSpanSums,
    kAttentionScratch,
    kGate,
    kUp,
    kCos,
    kSin,
    kCount
  };
  float* buffer(Buffer which,
                std::size_t floats);  // uninitialised; valid until the next call with a larger size

  // The inputs of linear layers in the representations that their weights ask for.
  struct LinearInputs;
  LinearInputs& linear_inputs() { return *linear_inputs_; }
  // Lists that a forward pass makes.
  struct Workspace;
  Workspace& workspace() { return *workspace_; }

  // Sees every intermediate result from now on; nullptr: nobody does. Must outlive its use.
  void set_observer(ForwardObserver* observer) { observer_ = observer; }
  void computed(Operation operation, std::int32_t layer, std::int64_t rows, const float* values,
                std::int64_t width) const {
    if (observer_ != nullptr) observer_->computed(operation, layer, rows, values, width);
  }

 private:
  struct Buffers;
  std::unique_ptr<ThreadPool> pool_;
  const kernels::KernelSet* kernels_;
  std::unique_ptr<Buffers> buffers_;
  std::unique_ptr<LinearInputs> linear_inputs_;
  std::unique_ptr<Workspace> workspace_;
  ForwardObserver* observer_ = nullptr;
};

}  // namespace kvasir

#endif  // KVASIR_EXECUTOR_H_
