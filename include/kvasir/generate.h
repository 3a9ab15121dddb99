// Text from a prompt: prefill, then one token after the other until something ends it.
#ifndef KVASIR_GENERATE_H_
#define KVASIR_GENERATE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/config.h"
#include "kvasir/executor.h"
#include "kvasir/language_model.h"
#include "kvasir/sampling.h"
#include "kvasir/sequence_runner.h"
#include "kvasir/token.h"

namespace kvasir {

// What is wanted, however it is run.
struct CompletionRequest {
  std::vector<TokenId> prompt;  // at least one token
  SamplingParams sampling;
  std::optional<std::int64_t> max_tokens;  // absent: as many as fit the context; 0 gives none
  std::int64_t context = 0;                // positions to use at most; 0: as many as there are
  std::vector<std::string> stop;           // the text ends before the first of them
  bool ignore_eos = false;                 // go on after the model's end-of-text token
  std::optional<std::size_t> logprobs;     // that many alternatives with each token's logprob; absent: none
  bool trace = false;                      // fill GeneratedToken::trace
};

struct GenerateRequest : CompletionRequest {
  RunOptions run;
  KvType kv_type = KvType::kF16;
};

struct GeneratedToken {
  TokenId id;
  std::string text;           // what may be shown now: whole characters, nothing that could become a stop
  const Logprobs* logprobs;   // if asked for
  const SamplerTrace* trace;  // if asked for
};

enum class FinishReason { kStop, kLength, kCancelled };
std::string_view finish_reason_name(FinishReason reason);  // "stop", "length", "cancelled"

struct GenerateResult {
  std::vector<TokenId> tokens;  // all that were generated, an end token too
  std::string text;             // without control tokens, up to the stop
  FinishReason finish_reason = FinishReason::kLength;
  std::optional<std::string> stop_reason;  // the stop string or the spelling of the end token
  std::vector<Logprobs> logprobs;          // one a token, if asked for
  double prefill_seconds = 0.0;
  double decode_seconds = 0.0;
};

// One generation, a token at a time, for a caller that asks for tokens. Not for use by several threads at
// once.
//
// The prompt and the new tokens together are at most the model's context: generation ends there with kLength.
class Generation {
 public:
  // Model and executor must outlive it. Several generations may take turns on one executor.
  // Error(kCapacity) with both numbers if the prompt leaves no room for one token (never is a prompt cut).
  // Error(kInvalidArgument) for an empty prompt, ids outside the vocabulary, or parameters out of range.
  Generation(const LanguageModel& model, Executor& executor, GenerateRequest request);
  ~Generation();
  Generation(Generation&&) noexcept;
  Generation& operator=(Generation&&) noexcept;

  // Runs the next RunOptions::prefill_chunk tokens of the prompt (0, or without a cache: all). False if there
  // are none left. Only for callers that must look up in between: next() runs what is left of the prompt by
  // itself.
  bool prefill();
  // The next token, valid until the next call; nullptr once the generation is over, by an error too.
  // Error(kRuntime) if the model's logits are not finite.
  const GeneratedToken* next();
  // Nothing more is generated. Unless it was over already, the finish reason is kCancelled.
  void cancel();

  bool over() const;
  // What there is so far. The texts of the tokens, concatenated, equal the result's text.
  const GenerateResult& result() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Called after each token; returning false ends the generation (kCancelled).
using TokenCallback = std::function<bool(const GeneratedToken&)>;

// A whole generation. Errors as Generation's.
GenerateResult generate(const LanguageModel& model, Executor& executor, const GenerateRequest& request,
                        const TokenCallback& callback = {});

}  // namespace kvasir

#endif  // KVASIR_GENERATE_H_
