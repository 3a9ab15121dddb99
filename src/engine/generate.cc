#include "kvasir/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>

#include "engine/choice.h"
#include "engine/measure.h"
#include "kvasir/error.h"

namespace kvasir {
namespace {

using Clock = std::chrono::steady_clock;

}  // namespace

std::string_view finish_reason_name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kCancelled:
      return "cancelled";
  }
  return "";
}

struct Generation::State {
  State(const LanguageModel& model, Executor& executor, GenerateRequest generate_request)
      : request(std::move(generate_request)),
        budget(token_budget(request, model.model().config().max_seq, model.model().config().vocab_size)),
        choice(model, request, budget),
        runner(model.model(), executor, 1, prompt_length() + budget, request.kv_type, request.run) {}

  std::int64_t prompt_length() const { return static_cast<std::int64_t>(request.prompt.size()); }

  GenerateRequest request;
  std::int64_t budget;  // tokens at most
  Choice choice;
  SequenceRunner runner;
  std::span<const float> logits;  // of the sequence's last position
  bool failed = false;            // by an error: it is over
};

Generation::Generation(const LanguageModel& model, Executor& executor, GenerateRequest request)
    : state_(std::make_unique<State>(model, executor, std::move(request))) {}
Generation::~Generation() = default;
Generation::Generation(Generation&&) noexcept = default;
Generation& Generation::operator=(Generation&&) noexcept = default;

bool Generation::prefill() {
  State& s = *state_;
  const std::int64_t left = s.prompt_length() - s.runner.length();
  if (over() || left <= 0) return false;
  s.failed = true;  // if this throws
  const RunOptions& run = s.request.run;
  const std::int64_t count =
      run.use_cache && run.prefill_chunk > 0 ? std::min(run.prefill_chunk, left) : left;
  const Clock::time_point start = Clock::now();
  s.logits = s.runner.append({s.request.prompt.data() + s.runner.length(), static_cast<std::size_t>(count)},
                             count == left ? 1 : 0);
  s.choice.result().prefill_seconds += seconds_since(start);
  s.failed = false;
  return true;
}

const GeneratedToken* Generation::next() {
  State& s = *state_;
  while (prefill()) {
  }
  if (over()) return nullptr;
  s.failed = true;  // if this throws
  const Clock::time_point start = Clock::now();
  if (!result().tokens.empty()) s.logits = s.runner.append({&result().tokens.back(), 1});
  const GeneratedToken& token = s.choice.accept(s.logits);
  s.choice.result().decode_seconds += seconds_since(start);
  s.failed = false;
  return &token;
}

void Generation::cancel() {
  if (!over()) state_->choice.cancel();
}

bool Generation::over() const { return state_->failed || state_->choice.over(); }
const GenerateResult& Generation::result() const { return std::as_const(state_->choice).result(); }

GenerateResult generate(const LanguageModel& model, Executor& executor, const GenerateRequest& request,
                        const TokenCallback& callback) {
  Generation generation(model, executor, request);
  while (const GeneratedToken* token = generation.next()) {
    if (callback && !callback(*token)) generation.cancel();
  }
  return generation.result();
}

}  // namespace kvasir
