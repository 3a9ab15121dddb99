#include "engine/timed_requests.h"

#include <fmt/format.h>

#include <utility>

namespace kvasir {

std::size_t TimedRequests::submit(std::vector<TokenId> prompt, std::optional<std::int64_t> max_tokens) {
  EngineRequest request;
  request.prompt = std::move(prompt);
  request.sampling.temperature = 0.0;
  request.max_tokens = max_tokens;
  request.ignore_eos = true;
  return submit(std::move(request));
}

std::size_t TimedRequests::submit(EngineRequest request) {
  const std::size_t number = requests_.size();
  request.on_token = [this, number](std::int32_t, const GeneratedToken& token) {
    requests_[number].times.push_back(Clock::now());
    requests_[number].tokens.push_back(token.id);
  };
  request.on_end = [this](std::int32_t, const ChoiceResult&, const Error* error) {
    ++ended_;
    if (error != nullptr) error_ = *error;
  };
  requests_.push_back({engine_.submit(std::move(request)), {}, {}});
  return number;
}

bool TimedRequests::step() {
  const bool any = engine_.step();
  if (error_) throw Error(*error_);
  return any;
}

void TimedRequests::await_tokens(std::size_t request, std::size_t count) {
  while (times(request).size() < count) {
    if (step()) continue;
    throw Error(ErrorKind::kRuntime,
                fmt::format("request {} ended after {} of {} tokens", request, times(request).size(), count));
  }
}

void TimedRequests::cancel_all() {
  for (const Timed& request : requests_) engine_.cancel(request.id);
  while (step()) {
  }
}

}  // namespace kvasir
