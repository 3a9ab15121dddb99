#include "engine/draft_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "base/thread_pool.h"
#include "kvasir/error.h"

namespace kvasir {
namespace {

void check_vocabulary(const Tokenizer& draft, const Tokenizer& target) {
  const auto refuse = [](const std::string& how) {
    throw Error(ErrorKind::kInvalidArgument,
                "the draft model's vocabulary is not the model's: " + how + "; they must be the same");
  };
  if (draft.vocab_size() != target.vocab_size()) {
    refuse(fmt::format("{} tokens, not {}", draft.vocab_size(), target.vocab_size()));
  }
  for (TokenId id = 0; id < target.vocab_size(); ++id) {
    if (draft.token_bytes(id) != target.token_bytes(id)) refuse(fmt::format("token {} is another one", id));
  }
}

}  // namespace

DraftModel::DraftModel(const LanguageModel& model, const LanguageModel& target, Executor& executor,
                       const PagedKvCacheOptions& cache)
    : model_(model.model()),
      tokenizer_(model.tokenizer()),
      executor_(executor),
      cache_(model_.config(), cache),
      cost_(static_cast<double>(model_.weight_bytes()) / static_cast<double>(target.model().weight_bytes())) {
  check_vocabulary(tokenizer_, target.tokenizer());
}

void DraftModel::draft(std::span<const Wish> wishes, std::int64_t budget) {
  runs_.clear();
  guessing_.clear();
  for (const Wish& wish : wishes) {
    if (follow(wish, budget)) guessing_.push_back({wish.sequence, wish.most, true});
  }
  if (!runs_.empty()) model_.forward(runs_, cache_, executor_, logits_);
  for (const Wish& wish : wishes) cache_.publish(wish.sequence->draft_slot, wish.sequence->tokens);
  while (!guessing_.empty()) {
    guess_all();
    std::erase_if(guessing_, [](const Guessing& one) { return !one.goes_on; });
    runs_.clear();
    for (const Guessing& one : guessing_) {
      const std::int32_t slot = one.sequence->draft_slot;
      runs_.push_back({slot, std::span<const TokenId>(one.sequence->draft).last(1), cache_.length(slot), 1});
    }
    if (!runs_.empty()) model_.forward(runs_, cache_, executor_, logits_);
  }
}

// Plans to compute those of the sequence's tokens that it has not seen, or as many as the budget allows.
// Whether guesses can be made then.
bool DraftModel::follow(const Wish& wish, std::int64_t& budget) {
  Sequence* sequence = wish.sequence;
  const std::span<const TokenId> tokens(sequence->tokens);
  if (sequence->draft_slot == kNotOpen) {
    sequence->draft_slot = cache_.open(tokens, sequence->request->wanted.cache_salt);
  }
  const std::int32_t slot = sequence->draft_slot;
  const std::int64_t begin = cache_.length(slot), all = std::ssize(tokens);
  const std::int64_t end = std::min(all, begin + budget);
  const bool complete = end == all;
  const std::int64_t positions = complete ? all + wish.most - 1 : end;  // the last guess is not computed
  if (end == begin || positions > model_.config().max_seq || !cache_.reserve(slot, positions)) return false;
  budget -= end - begin;
  runs_.push_back({slot,
                   tokens.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)),
                   begin, complete ? 1 : 0});
  return complete;
}

void DraftModel::guess_all() {
  const auto vocab_size = static_cast<std::size_t>(model_.config().vocab_size);
  executor_.pool().parallel_for(std::ssize(guessing_), [&](std::int64_t i) {
    const auto index = static_cast<std::size_t>(i);
    guess(guessing_[index], std::span<const float>(logits_).subspan(index * vocab_size, vocab_size));
  });
}

void DraftModel::guess(Guessing& one, std::span<const float> row) const {
  std::vector<TokenId>& draft = one.sequence->draft;
  const std::optional<TokenId> token = one.sequence->choice.guess(row, draft);
  if (token.has_value()) draft.push_back(*token);
  one.goes_on = token.has_value() && std::ssize(draft) < one.most && !tokenizer_.is_end_of_generation(*token);
}

void DraftModel::keep(const Sequence* sequence, std::int64_t length) {
  if (sequence->draft_slot == kNotOpen || cache_.length(sequence->draft_slot) <= length) return;
  cache_.set_length(sequence->draft_slot, length);
}

void DraftModel::leave(Sequence* sequence) {
  if (sequence->draft_slot == kNotOpen) return;
  cache_.close(sequence->draft_slot);
  sequence->draft_slot = kNotOpen;
}

}  // namespace kvasir
