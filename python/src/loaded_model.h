// A model and what it runs on, shared by all that computes with it.
#ifndef KVASIR_PYTHON_LOADED_MODEL_H_
#define KVASIR_PYTHON_LOADED_MODEL_H_

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>

#include "bindings.h"
#include "kvasir/executor.h"
#include "kvasir/language_model.h"

namespace kvasir::python {

// A mutex that serves those who wait in their order: an engine that computes all the time lets others in.
class Turn {
 public:
  void lock() {
    std::unique_lock lock(mutex_);
    const std::uint64_t mine = next_++;
    changed_.wait(lock, [&] { return serving_ == mine; });
  }
  void unlock() {
    {
      const std::lock_guard lock(mutex_);
      ++serving_;
    }
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t next_ = 0, serving_ = 0;
};

// One computation at a time; the turn is taken without the GIL.
struct LoadedModel {
  LoadedModel(const std::string& path, int threads, Activations activations)
      : executor(threads), model(LanguageModel::load(path, activations, executor)) {}

  Executor executor;
  LanguageModel model;
  Turn turn;
};

class Computing {
 public:
  explicit Computing(LoadedModel& loaded) : lock_(loaded.turn) {}

 private:
  nb::gil_scoped_release release_;
  std::unique_lock<Turn> lock_;
};

}  // namespace kvasir::python

#endif  // KVASIR_PYTHON_LOADED_MODEL_H_
