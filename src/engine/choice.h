// One answer to a prompt while it grows: from rows of logits to tokens, text and an end.
#ifndef KVASIR_ENGINE_CHOICE_H_
#define KVASIR_ENGINE_CHOICE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvasir/generate.h"
#include "kvasir/language_model.h"
#include "kvasir/sampling.h"
#include "kvasir/stop_matcher.h"
#include "kvasir/tokenizer.h"

namespace kvasir {

// How many tokens may be generated for a request where there are `positions` for its prompt and answer
// together. Errors as Generation's constructor.
std::int64_t token_budget(const CompletionRequest& request, std::int64_t positions, std::int32_t vocab_size);

// Text of one generation: ids to characters, characters to what may be shown.
class TextStream {
 public:
  TextStream(const Tokenizer& tokenizer, const std::vector<std::string>& stop);
  std::string push(TokenId id) { return matcher_.push(decoder_.push(id)); }
  std::string finish();
  std::optional<std::string> stopped() const;  // the stop string that was found

 private:
  IncrementalDecoder decoder_;
  StopMatcher matcher_;
  std::vector<std::string> stops_;
};

// For how many tokens of an answer there is room from the beginning, so that most grow without allocating.
inline std::size_t first_room(std::int64_t token_budget) {
  return static_cast<std::size_t>(std::min<std::int64_t>(token_budget, 1024));
}

class Choice {
 public:
  // Model and request must outlive it. Error(kInvalidArgument) for parameters out of range. index: which of
  // the request's choices, added to SamplingParams::choice.
  Choice(const LanguageModel& model, const CompletionRequest& request, std::int64_t token_budget,
         std::uint32_t index = 0);

  // Draws the next token from the logits [vocab_size] of the last position. Error(kRuntime) if they are not
  // finite: it is over then.
  const GeneratedToken& accept(std::span<const float> logits);
  // What would be drawn from these logits if `draft` had been drawn until then; nullopt if they are not
  // finite.
  std::optional<TokenId> guess(std::span<const float> logits, std::span<const TokenId> draft);
  // Nothing more is generated. Unless it was over already, the finish reason is kCancelled.
  void cancel();

  bool over() const { return !going_; }
  // How many tokens may still come.
  std::int64_t tokens_left() const { return token_budget_ - std::ssize(result_.tokens); }
  const GenerateResult& result() const { return result_; }
  GenerateResult& result() { return result_; }
  const GeneratedToken& token() const { return token_; }  // the last one

 private:
  void draw(std::span<const float> logits);
  bool receive();

  const LanguageModel& model_;
  const CompletionRequest& request_;
  std::int64_t token_budget_;
  Sampler sampler_;
  TextStream stream_;
  SamplerTrace trace_;
  GeneratedToken token_{};
  GenerateResult result_;
  std::vector<TokenId> guessed_output_;  // scratch of guess()
  bool going_;
};

}  // namespace kvasir

#endif  // KVASIR_ENGINE_CHOICE_H_
