#include "completer.h"

#include <fmt/format.h>

#include <exception>

#include "command.h"
#include "kvasir/error.h"

namespace kvasir::cli {
namespace {

EngineOptions engine_options(const LanguageModel* draft, const GenerateRequest& like,
                             std::int64_t positions) {
  const std::int64_t chunk = like.run.prefill_chunk;
  if (chunk < 0) {
    throw Error(ErrorKind::kInvalidArgument, fmt::format("prefill_chunk is {}, must not be negative", chunk));
  }
  EngineOptions options;
  options.kv_blocks = PagedKvCache::blocks_of(positions);
  options.kv_type = like.kv_type;
  options.max_running = 1;
  options.step_tokens = chunk == 0 ? positions : chunk;
  options.draft_model = draft;
  return options;
}

}  // namespace

Completer::Completer(const LanguageModel& model, const LanguageModel* draft, Executor& executor,
                     const GenerateRequest& like, Speculation speculation, std::int64_t positions)
    : model_(model), executor_(executor), speculation_(speculation) {
  if (like.run.use_cache) {
    engine_ = std::make_unique<Engine>(model, executor, engine_options(draft, like, positions));
  } else if (speculation != Speculation::kNone) {
    throw Error(ErrorKind::kInvalidArgument, "give --speculate or --no-cache, not both");
  }
}

ChoiceResult Completer::complete(const GenerateRequest& request, const TokenCallback& callback) {
  if (engine_ == nullptr) return {generate(model_, executor_, request, callback)};
  EngineRequest wanted;
  static_cast<CompletionRequest&>(wanted) = request;
  wanted.speculation = speculation_;
  RequestId id = 0;
  bool stopped = false;
  std::exception_ptr failure;  // of the callback
  wanted.on_token = [&](std::int32_t /*choice*/, const GeneratedToken& token) {
    if (stopped) return;
    try {
      stopped = !callback(token);
    } catch (...) {
      stopped = true;
      failure = std::current_exception();
    }
    if (stopped) engine_->cancel(id);
  };
  std::optional<ChoiceResult> result;
  std::optional<Error> error;
  wanted.on_end = [&](std::int32_t /*choice*/, const ChoiceResult& end, const Error* why) {
    result = end;
    if (why != nullptr) error = *why;
  };
  id = engine_->submit(std::move(wanted));
  while (!result.has_value()) engine_->step();
  if (failure) std::rethrow_exception(failure);
  if (error.has_value()) throw Error(*error);
  return *result;
}

double per_second(std::int64_t tokens, double seconds) {
  return seconds > 0.0 ? static_cast<double>(tokens) / seconds : 0.0;
}

std::string summary(const GenerateRequest& request, const ChoiceResult& result) {
  const std::int64_t prompt = std::ssize(request.prompt), tokens = std::ssize(result.tokens);
  std::string text = fmt::format("{} prompt tokens", prompt);
  if (result.cached_tokens > 0) text += fmt::format(", {} of them cached", result.cached_tokens);
  text += fmt::format(", {:.1f}/s; {} new tokens, {:.1f}/s",
                      per_second(prompt - result.cached_tokens, result.prefill_seconds), tokens,
                      per_second(tokens, result.decode_seconds));
  if (result.drafted > 0) text += fmt::format(", {} of {} guesses right", result.accepted, result.drafted);
  text += fmt::format("; ended by {}", finish_reason_name(result.finish_reason));
  if (result.stop_reason.has_value()) text += " " + in_quotes(*result.stop_reason);
  return text;
}

}  // namespace kvasir::cli
