#include "kvasir/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <span>
#include <utility>

#include "kvasir/error.h"
#include "kvasir/stop_matcher.h"

namespace kvasir {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// How many tokens may be generated at most; see GenerateRequest::max_tokens.
std::int64_t token_budget(const GenerateRequest& request, std::int64_t model_context) {
  const auto prompt = static_cast<std::int64_t>(request.prompt.size());
  const std::int64_t context = request.context == 0 ? model_context : request.context;
  if (context < 1 || context > model_context) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("context is {}, must be 1 to the model's {}", request.context, model_context));
  }
  if (request.max_tokens.has_value() && *request.max_tokens < 0) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("max_tokens is {}, must not be negative", *request.max_tokens));
  }
  if (prompt == 0) throw Error(ErrorKind::kInvalidArgument, "the prompt has no tokens");
  if (prompt >= context) {
    throw Error(
        ErrorKind::kCapacity,
        fmt::format("the prompt has {} tokens, but the context holds {}: prompt and answer together must fit",
                    prompt, context));
  }
  return std::min(request.max_tokens.value_or(context), context - prompt);
}

void check_ids(std::span<const TokenId> prompt, std::int32_t vocab_size) {
  for (const TokenId id : prompt) {
    if (id >= 0 && id < vocab_size) continue;
    throw Error(
        ErrorKind::kInvalidArgument,
        fmt::format("the prompt has the token id {}, the vocabulary has 0 to {}", id, vocab_size - 1));
  }
}

// Text of one generation: ids to characters, characters to what may be shown.
class TextStream {
 public:
  TextStream(const Tokenizer& tokenizer, const std::vector<std::string>& stop)
      : decoder_(tokenizer, /*skip_control=*/true), matcher_(stop), stops_(stop) {}

  std::string push(TokenId id) { return matcher_.push(decoder_.push(id)); }
  std::string finish() {
    std::string text = matcher_.push(decoder_.finish());
    return text + matcher_.finish();
  }
  std::optional<std::string> stopped() const {
    if (!matcher_.stopped().has_value()) return std::nullopt;
    return stops_[*matcher_.stopped()];
  }

 private:
  IncrementalDecoder decoder_;
  StopMatcher matcher_;
  std::vector<std::string> stops_;
};

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
  State(const LanguageModel& language_model, Executor& executor, GenerateRequest generate_request)
      : model(language_model),
        request(std::move(generate_request)),
        budget(token_budget(request, config().max_seq)),
        sampler(request.sampling, config().vocab_size),
        stream(model.tokenizer(), request.stop),
        runner(model.model(), executor, 1, prompt_length() + budget, request.kv_type, request.run),
        going(budget > 0) {
    check_ids(request.prompt, config().vocab_size);
  }

  const Config& config() const { return model.model().config(); }
  std::int64_t prompt_length() const { return static_cast<std::int64_t>(request.prompt.size()); }
  void sample();
  bool receive();

  const LanguageModel& model;
  GenerateRequest request;
  std::int64_t budget;  // tokens at most
  Sampler sampler;
  TextStream stream;
  SequenceRunner runner;
  std::span<const float> logits;  // of the sequence's last position
  SamplerTrace trace;
  GeneratedToken token{};
  GenerateResult result;
  bool going;
};

// Draws the next token into `token` and `result`.
void Generation::State::sample() {
  const auto position = request.prompt.size() + result.tokens.size();
  trace = {};
  const TokenId id =
      sampler.sample(logits, request.prompt, result.tokens, position, request.trace ? &trace : nullptr);
  result.tokens.push_back(id);
  if (request.logprobs.has_value()) result.logprobs.push_back(logprobs_of(logits, id, *request.logprobs));
  token = {id, "", request.logprobs.has_value() ? &result.logprobs.back() : nullptr,
           request.trace ? &trace : nullptr};
}

// Turns `token` into text; returns whether the generation goes on after it.
bool Generation::State::receive() {
  bool goes_on = false;
  if (model.tokenizer().is_end_of_generation(token.id) && !request.ignore_eos) {
    result.finish_reason = FinishReason::kStop;
    result.stop_reason = std::string(model.tokenizer().token_bytes(token.id));
  } else {
    token.text = stream.push(token.id);
    goes_on = !stream.stopped().has_value() && static_cast<std::int64_t>(result.tokens.size()) < budget;
  }
  if (!goes_on) token.text += stream.finish();
  if (stream.stopped().has_value()) {
    result.finish_reason = FinishReason::kStop;
    result.stop_reason = stream.stopped();
  }
  result.text += token.text;
  return goes_on;
}

Generation::Generation(const LanguageModel& model, Executor& executor, GenerateRequest request)
    : state_(std::make_unique<State>(model, executor, std::move(request))) {}
Generation::~Generation() = default;
Generation::Generation(Generation&&) noexcept = default;
Generation& Generation::operator=(Generation&&) noexcept = default;

bool Generation::prefill() {
  State& s = *state_;
  const std::int64_t left = s.prompt_length() - s.runner.length();
  if (!s.going || left <= 0) return false;
  s.going = false;  // for good, if this throws
  const RunOptions& run = s.request.run;
  const std::int64_t count =
      run.use_cache && run.prefill_chunk > 0 ? std::min(run.prefill_chunk, left) : left;
  const Clock::time_point start = Clock::now();
  s.logits = s.runner.append({s.request.prompt.data() + s.runner.length(), static_cast<std::size_t>(count)},
                             count == left ? 1 : 0);
  s.result.prefill_seconds += seconds_since(start);
  s.going = true;
  return true;
}

const GeneratedToken* Generation::next() {
  State& s = *state_;
  while (prefill()) {
  }
  if (!s.going) return nullptr;
  s.going = false;  // for good, if this throws
  const Clock::time_point start = Clock::now();
  if (!s.result.tokens.empty()) s.logits = s.runner.append({&s.result.tokens.back(), 1});
  s.sample();
  s.going = s.receive();
  s.result.decode_seconds += seconds_since(start);
  return &s.token;
}

void Generation::cancel() {
  if (!state_->going) return;
  state_->result.finish_reason = FinishReason::kCancelled;
  state_->going = false;
}

bool Generation::over() const { return !state_->going; }
const GenerateResult& Generation::result() const { return state_->result; }

GenerateResult generate(const LanguageModel& model, Executor& executor, const GenerateRequest& request,
                        const TokenCallback& callback) {
  Generation generation(model, executor, request);
  while (const GeneratedToken* token = generation.next()) {
    if (callback && !callback(*token)) generation.cancel();
  }
  return generation.result();
}

}  // namespace kvasir
