// Many requests at once: continuous batching (Yu et al. 2022) with chunked prefill (Agrawal et al. 2024) over
// a paged cache that shares prefixes. Whatever runs beside a request, its tokens, logits and text are those
// of a run by itself.
#ifndef KVASIR_ENGINE_H_
#define KVASIR_ENGINE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "kvasir/config.h"
#include "kvasir/error.h"
#include "kvasir/executor.h"
#include "kvasir/generate.h"
#include "kvasir/language_model.h"
#include "kvasir/paged_kv_cache.h"
#include "kvasir/token.h"

namespace kvasir {

struct EngineOptions {
  // For keys and values, a draft model's too; the pool has as many blocks as fit.
  std::size_t kv_bytes = std::size_t{1} << 30;
  std::int64_t kv_blocks = 0;  // the number of blocks instead, if not 0
  KvType kv_type = KvType::kF16;
  bool share_prefixes = true;
  std::int32_t max_running = 64;     // sequences in one step
  std::int64_t max_waiting = 1024;   // requests that wait to run for the first time
  std::int64_t step_tokens = 512;    // in one step, of all sequences; at least max_running
  std::uint64_t shuffle_blocks = 0;  // see PagedKvCacheOptions::shuffle
  // A smaller model with the same vocabulary, for requests with Speculation::kDraftModel; must outlive the
  // engine.
  const LanguageModel* draft_model = nullptr;
};

using RequestId = std::uint64_t;

// Tokens that are guessed, and computed together with the next one; a guess counts only if it is what would
// have been drawn, so that nothing but the time changes.
enum class Speculation {
  kNone,
  kNgram,       // what followed the last time the text stood as it does now (prompt lookup, Saxena 2023)
  kDraftModel,  // what a smaller model draws, with the same noise (Leviathan et al. 2023)
};

// One answer of an engine.
struct ChoiceResult : GenerateResult {
  std::int64_t cached_tokens = 0;          // of the prompt, whose keys and values were there already
  std::int64_t preemptions = 0;            // how often its blocks were given to others, to be computed again
  std::int64_t drafted = 0, accepted = 0;  // tokens that were guessed, and of them rightly
};

// What happened in one step, in the order of events. Spans are valid during the call.
struct StepReport {
  struct Part {  // one sequence's tokens in the forward pass
    RequestId request;
    std::int32_t choice;
    std::int64_t first_position, tokens;
    std::int64_t logits;                   // of so many of its last tokens; 0: no token is drawn
    std::int64_t drafted;                  // of these tokens: guesses, at the end
    std::vector<std::int32_t> blocks;      // its block table
    std::vector<std::int32_t> references;  // how many sequences use each of them
  };
  struct Admitted {
    RequestId request;
    std::int32_t choice;
    std::int64_t cached_positions;
  };
  struct Preempted {
    RequestId request;
    std::int32_t choice;
  };
  struct Drawn {
    RequestId request;
    std::int32_t choice;
    TokenId token;
  };
  std::int64_t step = 0;  // counted from 1
  std::vector<Part> parts;
  std::vector<Part> idle;       // sequences that run, but have no tokens in this step
  PagedKvCache::Usage usage{};  // in the forward pass, as the block tables are
  std::vector<Admitted> admitted;
  std::vector<Preempted> preempted;
  std::vector<Drawn> drawn;
  std::span<const float> logits;        // [sum of the parts' logits][vocab_size]
  const PagedKvCache* cache = nullptr;  // after the step
};

// A request. Its callbacks are called by the thread that steps, and must not throw; they may submit and
// cancel.
struct EngineRequest : CompletionRequest {
  std::int32_t n = 1;         // choices, drawn with sampling.choice, sampling.choice + 1, ...
  std::int32_t priority = 0;  // lower numbers first; equal ones in the order of their arrival
  std::string cache_salt;     // only requests of one salt share prefixes
  Speculation speculation = Speculation::kNone;
  std::function<void(std::int32_t choice, const GeneratedToken& token)> on_token;
  // Once for each choice. error: nullptr, or why it ended before its time; the result has what there was.
  std::function<void(std::int32_t choice, const ChoiceResult& result, const Error* error)> on_end;
};

struct EngineMetrics {
  std::int64_t running = 0, waiting = 0;  // sequences now
  std::int64_t steps = 0;
  std::int64_t computed_tokens = 0;  // positions that went through the model
  std::int64_t cached_tokens = 0;    // positions that did not need to, when a sequence began or went on
  std::int64_t generated_tokens = 0;
  std::int64_t preemptions = 0;
  std::int64_t drafted = 0, accepted = 0;
  // Of all steps.
  double schedule_seconds = 0.0, draft_seconds = 0.0, forward_seconds = 0.0, draw_seconds = 0.0;
  PagedKvCache::Usage cache{};
};

// submit() and cancel() may be called by any thread at any time; step(), wait() and run() by one at a time.
class Engine {
 public:
  // Model and executor must outlive it. Error(kInvalidArgument) for options out of range, and for a draft
  // model with another vocabulary; Error(kCapacity) if kv_bytes holds no block.
  Engine(const LanguageModel& model, Executor& executor, const EngineOptions& options);
  // What is not over by then ends without a callback.
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Error(kInvalidArgument): parameters out of range, or a draft model's guesses are wanted and there is
  // none. Error(kCapacity): the prompt leaves no room for a token in the context, which is the model's or
  // that of the whole pool, with both numbers. Error(kBusy): too many wait.
  RequestId submit(EngineRequest request);
  // Takes effect at the next step: its choices end there with FinishReason::kCancelled. Nothing if it is
  // over.
  void cancel(RequestId request);

  // One forward pass. False if there was nothing to do.
  bool step();
  // Sleeps until a request or a cancellation has come since the last call, or stop is requested. For who
  // steps.
  void wait(const std::stop_token& stop);
  // Steps, and waits while there is nothing to do, until stop is requested.
  void run(const std::stop_token& stop);

  // Called at the end of each step; by the thread that steps.
  void set_observer(std::function<void(const StepReport&)> observer);
  EngineMetrics metrics() const;  // any thread; as of the last step

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvasir

#endif  // KVASIR_ENGINE_H_
