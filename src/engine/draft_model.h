// Guesses of the next tokens by a smaller model (speculative decoding, Leviathan et al. 2023).
#ifndef KVASIR_ENGINE_DRAFT_MODEL_H_
#define KVASIR_ENGINE_DRAFT_MODEL_H_

#include <cstdint>
#include <span>
#include <vector>

#include "engine/queue.h"
#include "kvasir/executor.h"
#include "kvasir/language_model.h"
#include "kvasir/model.h"
#include "kvasir/paged_kv_cache.h"

namespace kvasir {

// It has a cache of its own, in which it follows the sequences that it guesses for, and draws as each of them
// does: with the same parameters, history and noise.
class DraftModel {
 public:
  // Models and executor must outlive it. Error(kInvalidArgument) unless the two models have the same
  // vocabulary.
  DraftModel(const LanguageModel& model, const LanguageModel& target, Executor& executor,
             const PagedKvCacheOptions& cache);

  struct Wish {
    Sequence* sequence;
    std::int64_t most;  // guesses, at least 1
  };
  // Fills Sequence::draft. There are no guesses for a sequence if its tokens, or the blocks for them, are
  // more than the context, the cache, or the `budget` of tokens of all sequences in this call allows.
  void draft(std::span<const Wish> wishes, std::int64_t budget);
  // Of what was computed for the sequence, the first `length` tokens were right.
  void keep(const Sequence* sequence, std::int64_t length);
  void leave(Sequence* sequence);  // if it is there

  // Of a guess, in tokens of the target, where reading weights is what takes the time.
  double cost() const { return cost_; }
  void check() const { cache_.check(); }

 private:
  struct Guessing {
    Sequence* sequence;
    std::int64_t most;
    bool goes_on;
  };
  bool follow(const Wish& wish, std::int64_t& budget);
  void guess_all();
  void guess(Guessing& one, std::span<const float> row) const;

  const Model& model_;
  const Tokenizer& tokenizer_;
  Executor& executor_;
  PagedKvCache cache_;
  double cost_;
  std::vector<Run> runs_;
  std::vector<Guessing> guessing_;
  std::vector<float> logits_;
};

}  // namespace kvasir

#endif  // KVASIR_ENGINE_DRAFT_MODEL_H_
