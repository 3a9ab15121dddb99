// An engine's requests, and when each of their tokens came.
#ifndef KVASIR_ENGINE_TIMED_REQUESTS_H_
#define KVASIR_ENGINE_TIMED_REQUESTS_H_

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "kvasir/engine.h"

namespace kvasir {

class TimedRequests {
 public:
  using Clock = std::chrono::steady_clock;

  TimedRequests(const LanguageModel& model, Executor& executor, const EngineOptions& options)
      : engine_(model, executor, options) {}
  TimedRequests(const TimedRequests&) = delete;  // the engine's callbacks look here
  TimedRequests& operator=(const TimedRequests&) = delete;

  // Returns the request's number: 0, 1, ... Its callbacks are set here.
  std::size_t submit(EngineRequest request);
  // A greedy one that no end token ends. max_tokens absent: until it is cancelled or the context is full.
  std::size_t submit(std::vector<TokenId> prompt, std::optional<std::int64_t> max_tokens);
  // One step. False if there was nothing to do. Throws the Error with which a request has ended.
  bool step();
  // Steps until a request has so many tokens. Error(kRuntime) if it ends before.
  void await_tokens(std::size_t request, std::size_t count);
  // Ends all requests.
  void cancel_all();

  const std::vector<Clock::time_point>& times(std::size_t request) const { return requests_[request].times; }
  const std::vector<TokenId>& tokens(std::size_t request) const { return requests_[request].tokens; }
  std::size_t submitted() const { return requests_.size(); }
  std::size_t ended() const { return ended_; }
  Engine& engine() { return engine_; }

 private:
  struct Timed {
    RequestId id;
    std::vector<Clock::time_point> times;  // of the tokens
    std::vector<TokenId> tokens;
  };
  Engine engine_;
  std::vector<Timed> requests_;
  std::size_t ended_ = 0;
  std::optional<Error> error_;
};

}  // namespace kvasir

#endif  // KVASIR_ENGINE_TIMED_REQUESTS_H_
