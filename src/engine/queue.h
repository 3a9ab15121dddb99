// Requests on their way through the engine.
#ifndef KVASIR_ENGINE_QUEUE_H_
#define KVASIR_ENGINE_QUEUE_H_

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/choice.h"
#include "engine/draft_length.h"
#include "kvasir/engine.h"

namespace kvasir {

inline constexpr std::int32_t kNotOpen = -1;

struct Request;

// One choice of a request, on its way through the queues.
struct Sequence {
  Sequence(const LanguageModel& model, Request& of, std::int64_t token_budget, std::int32_t index);

  Request* request;
  std::int32_t index;
  Choice choice;
  std::vector<TokenId> tokens;   // prompt and answer
  std::int32_t slot = kNotOpen;  // in the cache, while it runs
  bool follows = false;          // waits for the first choice to compute their prompt
  bool ended = false;
  bool has_run = false;
  std::int64_t cached_tokens = 0, preemptions = 0, drafted = 0, accepted = 0;  // see ChoiceResult
  DraftLength draft_length;
  std::vector<TokenId> draft;          // of this step
  std::int32_t draft_slot = kNotOpen;  // in the draft model's cache
  std::chrono::steady_clock::time_point started, drew_first;
};

struct Request {
  Request(RequestId number, EngineRequest what) : id(number), wanted(std::move(what)) {}

  RequestId id;  // in the order of arrival
  EngineRequest wanted;
  std::vector<std::unique_ptr<Sequence>> choices;
  std::int32_t left = 0;    // choices that have not ended
  bool counted_new = true;  // in State::new_requests
};

inline Sequence::Sequence(const LanguageModel& model, Request& of, std::int64_t token_budget, std::int32_t i)
    : request(&of),
      index(i),
      choice(model, of.wanted, token_budget, static_cast<std::uint32_t>(i)),
      tokens(of.wanted.prompt) {
  tokens.reserve(tokens.size() + first_room(token_budget));
}

// Who comes first.
inline bool before(const Sequence* a, const Sequence* b) {
  const auto key = [](const Sequence* s) {
    return std::tuple(s->request->wanted.priority, s->request->id, s->index);
  };
  return key(a) < key(b);
}

// Sequences in that order.
class Queue {
 public:
  void insert(Sequence* sequence) {
    sequences_.insert(std::upper_bound(sequences_.begin(), sequences_.end(), sequence, before), sequence);
  }
  void remove(const Sequence* sequence) { std::erase(sequences_, sequence); }
  bool empty() const { return sequences_.empty(); }
  std::size_t size() const { return sequences_.size(); }
  Sequence* first() const { return sequences_.front(); }
  Sequence* last() const { return sequences_.back(); }
  const std::vector<Sequence*>& all() const { return sequences_; }

 private:
  std::vector<Sequence*> sequences_;
};

}  // namespace kvasir

#endif  // KVASIR_ENGINE_QUEUE_H_
