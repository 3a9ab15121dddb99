#include "engine/choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "kvasir/error.h"

namespace kvasir {
namespace {

void check_ids(std::span<const TokenId> prompt, std::int32_t vocab_size) {
  for (const TokenId id : prompt) {
    if (id >= 0 && id < vocab_size) continue;
    throw Error(
        ErrorKind::kInvalidArgument,
        fmt::format("the prompt has the token id {}, the vocabulary has 0 to {}", id, vocab_size - 1));
  }
}

SamplingParams with_choice(SamplingParams params, std::uint32_t index) {
  params.choice += index;
  return params;
}

}  // namespace

std::int64_t token_budget(const CompletionRequest& request, std::int64_t positions, std::int32_t vocab_size) {
  const auto prompt = static_cast<std::int64_t>(request.prompt.size());
  const std::int64_t context = request.context == 0 ? positions : request.context;
  if (context < 1 || context > positions) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("context is {}, must be 1 to {}", context, positions));
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
  check_ids(request.prompt, vocab_size);
  return std::min(request.max_tokens.value_or(context), context - prompt);
}

TextStream::TextStream(const Tokenizer& tokenizer, const std::vector<std::string>& stop)
    : decoder_(tokenizer, /*skip_control=*/true), matcher_(stop), stops_(stop) {}

std::string TextStream::finish() {
  std::string text = matcher_.push(decoder_.finish());
  return text + matcher_.finish();
}

std::optional<std::string> TextStream::stopped() const {
  if (!matcher_.stopped().has_value()) return std::nullopt;
  return stops_[*matcher_.stopped()];
}

Choice::Choice(const LanguageModel& model, const CompletionRequest& request, std::int64_t token_budget,
               std::uint32_t index)
    : model_(model),
      request_(request),
      token_budget_(token_budget),
      sampler_(with_choice(request.sampling, index), model.model().config().vocab_size),
      stream_(model.tokenizer(), request.stop),
      going_(token_budget > 0) {
  constexpr std::size_t kTextBytes = 4;  // of a token, about
  result_.tokens.reserve(first_room(token_budget));
  result_.text.reserve(kTextBytes * first_room(token_budget));
}

// Draws the next token into `token_` and the result.
void Choice::draw(std::span<const float> logits) {
  const auto position = request_.prompt.size() + result_.tokens.size();
  trace_ = {};
  const TokenId id =
      sampler_.sample(logits, request_.prompt, result_.tokens, position, request_.trace ? &trace_ : nullptr);
  result_.tokens.push_back(id);
  if (request_.logprobs.has_value()) result_.logprobs.push_back(logprobs_of(logits, id, *request_.logprobs));
  token_ = {id, "", request_.logprobs.has_value() ? &result_.logprobs.back() : nullptr,
            request_.trace ? &trace_ : nullptr};
}

// Turns the token into text; returns whether there will be another.
bool Choice::receive() {
  bool goes_on = false;
  if (model_.tokenizer().is_end_of_generation(token_.id) && !request_.ignore_eos) {
    result_.finish_reason = FinishReason::kStop;
    result_.stop_reason = std::string(model_.tokenizer().token_bytes(token_.id));
  } else {
    token_.text = stream_.push(token_.id);
    goes_on =
        !stream_.stopped().has_value() && static_cast<std::int64_t>(result_.tokens.size()) < token_budget_;
  }
  if (!goes_on) token_.text += stream_.finish();
  if (stream_.stopped().has_value()) {
    result_.finish_reason = FinishReason::kStop;
    result_.stop_reason = stream_.stopped();
  }
  result_.text += token_.text;
  return goes_on;
}

const GeneratedToken& Choice::accept(std::span<const float> logits) {
  going_ = false;  // for good, if this throws
  draw(logits);
  going_ = receive();
  return token_;
}

std::optional<TokenId> Choice::guess(std::span<const float> logits, std::span<const TokenId> draft) {
  guessed_output_.assign(result_.tokens.begin(), result_.tokens.end());
  guessed_output_.insert(guessed_output_.end(), draft.begin(), draft.end());
  try {
    return sampler_.sample(logits, request_.prompt, guessed_output_,
                           request_.prompt.size() + guessed_output_.size());
  } catch (const Error&) {
    return std::nullopt;
  }
}

void Choice::cancel() {
  if (!going_) return;
  result_.finish_reason = FinishReason::kCancelled;
  going_ = false;
}

}  // namespace kvasir
