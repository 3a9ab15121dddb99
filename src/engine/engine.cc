#include "kvasir/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <stdexcept>
#include <unordered_map>
#include <utility>

#include "base/thread_pool.h"
#include "engine/choice.h"
#include "engine/draft_length.h"
#include "engine/draft_model.h"
#include "engine/measure.h"
#include "engine/ngram_draft.h"
#include "engine/queue.h"

namespace kvasir {
namespace {

using Clock = std::chrono::steady_clock;

void check_options(const EngineOptions& options) {
  const auto refuse = [](const std::string& message) { throw Error(ErrorKind::kInvalidArgument, message); };
  if (options.max_running < 1)
    refuse(fmt::format("max_running is {}, must be at least 1", options.max_running));
  if (options.max_waiting < 1) {
    refuse(fmt::format("max_waiting is {}, must be at least 1", options.max_waiting));
  }
  if (options.step_tokens < options.max_running) {
    refuse(fmt::format(
        "step_tokens is {}, must be at least max_running, {}: each sequence that runs takes a token",
        options.step_tokens, options.max_running));
  }
  if (options.kv_blocks < 0) refuse(fmt::format("kv_blocks is {}, must not be negative", options.kv_blocks));
}

PagedKvCacheOptions cache_options(const Config& config, const EngineOptions& options) {
  std::size_t block = PagedKvCache::block_bytes(config, options.kv_type);
  if (options.draft_model != nullptr) {  // its cache has as many blocks
    block += PagedKvCache::block_bytes(options.draft_model->model().config(), options.kv_type);
  }
  const auto fitting = static_cast<std::int64_t>(options.kv_bytes / block);
  if (options.kv_blocks == 0 && fitting < 1) {
    throw Error(ErrorKind::kCapacity, fmt::format("kv_bytes is {}, but one block of {} positions takes {}",
                                                  options.kv_bytes, PagedKvCache::kBlockPositions, block));
  }
  return {.blocks = options.kv_blocks == 0 ? fitting : options.kv_blocks,
          .sequences = options.max_running,
          .type = options.kv_type,
          .share_prefixes = options.share_prefixes,
          .shuffle = options.shuffle_blocks};
}

}  // namespace

struct Engine::State {
  State(const LanguageModel& language_model, Executor& an_executor, const EngineOptions& engine_options)
      : model(language_model),
        executor(an_executor),
        options((check_options(engine_options), engine_options)),
        cache(model.model().config(), cache_options(model.model().config(), options)),
        context(std::min<std::int64_t>(model.model().config().max_seq,
                                       cache.usage().blocks * PagedKvCache::kBlockPositions)) {
    if (options.draft_model == nullptr) return;
    draft_model.emplace(*options.draft_model, model, executor,
                        cache_options(model.model().config(), options));
  }

  // ---- Between the threads
  std::unique_ptr<Request> make_request(EngineRequest wanted);
  void take_inbox();
  template <class Before>
  void end_all(const Request* request, Before before_each);
  void publish_metrics();

  // ---- Scheduling
  void schedule();
  void plan(Sequence* sequence, std::int64_t end);
  bool make_room(Sequence* sequence, std::int64_t end);
  void preempt(Sequence* sequence);
  void admit();
  void note_start(Sequence* sequence, std::int64_t shared);
  void no_longer_new(Request& request);
  std::int64_t left_to_compute(const Sequence* sequence) const {
    return std::ssize(sequence->tokens) - cache.length(sequence->slot);
  }

  void make_drafts();

  // ---- After the forward pass
  void forward();
  struct Drawing;
  void draw_all();
  void draw(Drawing& drawing) const;
  void followers_join(const Sequence* first, std::span<const float> rows);
  void hand_out();
  void hand_out(Drawing& drawing, Clock::time_point now);
  void note_draft(Sequence* sequence, std::int64_t known, std::int64_t accepted);
  void leave_cache(Sequence* sequence);
  void end(Sequence* sequence, const Error* error);
  void note_parts();
  void report();

  const LanguageModel& model;
  Executor& executor;
  EngineOptions options;
  PagedKvCache cache;
  std::int64_t context;  // positions that a request may have

  mutable std::mutex mutex;  // of what is here
  std::condition_variable_any arrived;
  std::vector<std::unique_ptr<Request>> inbox;
  std::vector<RequestId> cancelled;
  bool has_news = false;  // since the last wait()
  RequestId next_id = 1;
  std::int64_t new_requests = 0;  // that wait to run for the first time
  EngineMetrics published;

  // Of the thread that steps.
  std::unordered_map<RequestId, std::unique_ptr<Request>> requests;
  Queue running, waiting;
  struct Planned {
    Sequence* sequence;
    std::int64_t begin, end;  // positions, of drafts too
    std::int64_t logits;      // of so many of the last ones
  };
  std::vector<Planned> planned;
  std::int64_t planned_tokens = 0;
  std::optional<DraftModel> draft_model;
  std::vector<DraftModel::Wish> wishes;
  std::vector<Run> runs;
  std::vector<float> logits;
  struct Drawing {
    Sequence* sequence;
    std::span<const float> rows;  // the first is drawn from at once, those after drafts if these were right
    std::optional<Error> error;
  };
  std::vector<Drawing> drawings;
  EngineMetrics metrics;
  StepReport step_report;
  std::function<void(const StepReport&)> observer;
};

// ---- Between the threads

std::unique_ptr<Request> Engine::State::make_request(EngineRequest wanted) {
  if (wanted.n < 1 || wanted.n > 128) {
    throw Error(ErrorKind::kInvalidArgument, fmt::format("n is {}, must be 1 to 128", wanted.n));
  }
  if (wanted.speculation == Speculation::kDraftModel && !draft_model) {
    throw Error(ErrorKind::kInvalidArgument,
                "guesses of a draft model are wanted, but the engine has no draft model");
  }
  const std::int64_t budget = token_budget(wanted, context, model.model().config().vocab_size);
  auto request = std::make_unique<Request>(0, std::move(wanted));
  for (std::int32_t i = 0; i < request->wanted.n; ++i) {
    request->choices.push_back(std::make_unique<Sequence>(model, *request, budget, i));
    request->choices.back()->follows = i > 0;
  }
  request->left = request->wanted.n;
  return request;
}

// New requests, then cancellations, which may be of new ones.
void Engine::State::take_inbox() {
  std::vector<std::unique_ptr<Request>> arrivals;
  std::vector<RequestId> gone;
  {
    const std::lock_guard lock(mutex);
    arrivals.swap(inbox);
    gone.swap(cancelled);
  }
  for (auto& arrival : arrivals) {
    Request* request = arrival.get();
    requests.emplace(request->id, std::move(arrival));
    if (request->choices.front()->choice.over()) {  // no token is wanted
      end_all(request, [](Sequence*) {});
    } else {
      waiting.insert(request->choices.front().get());
    }
  }
  for (const RequestId id : gone) {
    const auto found = requests.find(id);
    if (found == requests.end()) continue;
    end_all(found->second.get(), [](Sequence* sequence) { sequence->choice.cancel(); });
  }
}

// Ends the choices that have not ended.
template <class Before>
void Engine::State::end_all(const Request* request, Before before_each) {
  std::vector<Sequence*> choices;
  for (const auto& choice : request->choices) {
    if (!choice->ended) choices.push_back(choice.get());
  }
  for (Sequence* sequence : choices) {  // the last of them takes the request with it
    before_each(sequence);
    end(sequence, nullptr);
  }
}

void Engine::State::publish_metrics() {
  metrics.running = static_cast<std::int64_t>(running.size());
  metrics.waiting = static_cast<std::int64_t>(waiting.size());
  metrics.cache = cache.usage();
  const std::lock_guard lock(mutex);
  published = metrics;
}

// ---- Scheduling

// Each running sequence's next token first, then what is left of prompts, then new ones, all in their order:
// a long prompt delays the others by no more than one step.
void Engine::State::schedule() {
  planned.clear();
  planned_tokens = 0;
  for (const bool decoding : {true, false}) {
    for (std::size_t i = 0; i < running.size(); ++i) {  // those behind may be preempted meanwhile
      Sequence* sequence = running.all()[i];
      const std::int64_t left = left_to_compute(sequence), budget = options.step_tokens - planned_tokens;
      if ((left == 1) != decoding || budget == 0) continue;
      const std::int64_t end = cache.length(sequence->slot) + std::min(left, budget);
      if (make_room(sequence, end)) plan(sequence, end);
    }
  }
  admit();
}

void Engine::State::plan(Sequence* sequence, std::int64_t end) {
  const std::int64_t begin = cache.length(sequence->slot);
  sequence->draft.clear();
  planned.push_back({sequence, begin, end, end == std::ssize(sequence->tokens) ? 1 : 0});
  planned_tokens += end - begin;
}

// Blocks for the sequence up to `end`, from those of later ones if the pool has no more. False if there are
// none that are later: it has to wait for earlier ones.
bool Engine::State::make_room(Sequence* sequence, std::int64_t end) {
  while (!cache.reserve(sequence->slot, end)) {
    if (running.last() == sequence) return false;
    preempt(running.last());
  }
  return true;
}

// It will compute its tokens again; what it has drawn stays drawn.
void Engine::State::preempt(Sequence* sequence) {
  for (auto one = planned.begin(); one != planned.end(); ++one) {
    if (one->sequence != sequence) continue;
    planned_tokens -= one->end - one->begin;
    planned.erase(one);
    break;
  }
  leave_cache(sequence);
  waiting.insert(sequence);
  ++sequence->preemptions;
  ++metrics.preemptions;
  step_report.preempted.push_back({sequence->request->id, sequence->index});
}

void Engine::State::admit() {
  while (!waiting.empty() && std::ssize(running.all()) < options.max_running &&
         planned_tokens < options.step_tokens) {
    Sequence* sequence = waiting.first();
    const std::int32_t slot = cache.open(sequence->tokens, sequence->request->wanted.cache_salt);
    const std::int64_t shared = cache.length(slot), tokens = std::ssize(sequence->tokens);
    // Room for all that it has and one more, so that it will not be sent back at once.
    const std::int64_t needed = PagedKvCache::blocks_of(tokens + 1) - PagedKvCache::blocks_of(shared);
    if (needed > cache.usage().available()) {
      cache.close(slot);
      return;
    }
    cache.reserve(slot, tokens);
    waiting.remove(sequence);
    sequence->slot = slot;
    running.insert(sequence);
    note_start(sequence, shared);
    plan(sequence, shared + std::min(tokens - shared, options.step_tokens - planned_tokens));
  }
}

void Engine::State::note_start(Sequence* sequence, std::int64_t shared) {
  step_report.admitted.push_back({sequence->request->id, sequence->index, shared});
  metrics.cached_tokens += shared;
  if (sequence->has_run) return;
  sequence->has_run = true;
  sequence->started = Clock::now();
  sequence->cached_tokens = shared;
  no_longer_new(*sequence->request);
}

void Engine::State::no_longer_new(Request& request) {
  if (!std::exchange(request.counted_new, false)) return;
  const std::lock_guard lock(mutex);
  --new_requests;
}

// Guesses take what the step has left, and no blocks from others.
void Engine::State::make_drafts() {
  const auto draws = std::ranges::count_if(planned, [](const Planned& one) { return one.logits > 0; });
  std::int64_t left = options.step_tokens - planned_tokens;
  wishes.clear();
  for (const Planned& one : planned) {
    Sequence* sequence = one.sequence;
    const Speculation speculation = sequence->request->wanted.speculation;
    if (speculation == Speculation::kNone || one.end - one.begin != 1 || one.logits == 0) continue;
    const bool by_model = speculation == Speculation::kDraftModel;
    const double cost = guess_cost(draws) + (by_model ? draft_model->cost() : 0.0);
    const std::int64_t most =
        std::min({sequence->draft_length.next(cost), left, sequence->choice.tokens_left() - 1});
    if (most < 1) continue;
    left -= most;
    if (by_model) {
      wishes.push_back({sequence, most});
    } else {
      ngram_draft(sequence->tokens, most, sequence->draft);
    }
  }
  if (!wishes.empty()) draft_model->draft(wishes, options.step_tokens);
  for (Planned& one : planned) {
    std::vector<TokenId>& draft = one.sequence->draft;
    if (!draft.empty() && !cache.reserve(one.sequence->slot, one.end + std::ssize(draft))) {
      draft.clear();
      if (draft_model) draft_model->keep(one.sequence, one.end);
    }
    one.end += std::ssize(draft);
    one.logits += std::ssize(draft);
    planned_tokens += std::ssize(draft);
  }
}

// ---- After the forward pass

void Engine::State::forward() {
  runs.clear();
  for (const Planned& one : planned) {
    std::vector<TokenId>& all = one.sequence->tokens;  // with the draft behind them while they are computed
    all.insert(all.end(), one.sequence->draft.begin(), one.sequence->draft.end());
    runs.push_back({one.sequence->slot,
                    std::span<const TokenId>(all).subspan(static_cast<std::size_t>(one.begin),
                                                          static_cast<std::size_t>(one.end - one.begin)),
                    one.begin, one.logits});
  }
  model.model().forward(runs, cache, executor, logits);
  for (const Planned& one : planned) {
    Sequence* sequence = one.sequence;
    sequence->tokens.resize(sequence->tokens.size() - sequence->draft.size());
    if (sequence->draft.empty()) cache.publish(sequence->slot, sequence->tokens);
  }
  metrics.computed_tokens += planned_tokens;
}

void Engine::State::draw_all() {
  const auto vocab_size = static_cast<std::size_t>(model.model().config().vocab_size);
  drawings.clear();
  std::size_t row_begin = 0;
  for (const Planned& one : planned) {
    if (one.logits == 0) continue;
    const std::size_t size = static_cast<std::size_t>(one.logits) * vocab_size;
    const std::span<const float> rows = std::span<const float>(logits).subspan(row_begin, size);
    row_begin += size;
    drawings.push_back({one.sequence, rows, std::nullopt});
    if (one.sequence->index == 0 && one.sequence->choice.result().tokens.empty()) {
      followers_join(one.sequence, rows);
    }
  }
  executor.pool().parallel_for(std::ssize(drawings),
                               [&](std::int64_t i) { draw(drawings[static_cast<std::size_t>(i)]); });
}

// The next token, from the first of the rows that are left.
void Engine::State::draw(Drawing& drawing) const {
  const auto vocab_size = static_cast<std::size_t>(model.model().config().vocab_size);
  try {
    drawing.sequence->choice.accept(drawing.rows.first(vocab_size));
  } catch (const Error& error) {
    drawing.error = error;
  } catch (const std::exception& error) {
    drawing.error = Error(ErrorKind::kRuntime, error.what());
  }
  drawing.rows = drawing.rows.subspan(vocab_size);
}

// The other choices begin where the first one's prompt ends, with the same logits.
void Engine::State::followers_join(const Sequence* first, std::span<const float> rows) {
  for (const auto& choice : first->request->choices) {
    Sequence* sequence = choice.get();
    if (!std::exchange(sequence->follows, false)) continue;
    if (std::ssize(running.all()) >= options.max_running) {
      waiting.insert(sequence);
      continue;
    }
    sequence->slot = cache.fork(first->slot);
    running.insert(sequence);
    note_start(sequence, cache.length(sequence->slot));
    sequence->cached_tokens = first->cached_tokens;
    drawings.push_back({sequence, rows, std::nullopt});
  }
}

// Tokens to those who wait for them.
void Engine::State::hand_out() {
  const Clock::time_point now = Clock::now();
  for (Drawing& drawing : drawings) hand_out(drawing, now);
}

void Engine::State::hand_out(Drawing& drawing, Clock::time_point now) {
  Sequence* sequence = drawing.sequence;
  const EngineRequest& wanted = sequence->request->wanted;
  const std::span<const TokenId> draft(sequence->draft);
  const auto known = static_cast<std::int64_t>(sequence->tokens.size());
  std::size_t right = 0;  // of the draft
  while (!drawing.error) {
    const GeneratedToken& token = sequence->choice.token();
    if (sequence->choice.result().tokens.size() == 1) sequence->drew_first = now;
    sequence->tokens.push_back(token.id);
    ++metrics.generated_tokens;
    if (observer) step_report.drawn.push_back({sequence->request->id, sequence->index, token.id});
    const bool guessed = right < draft.size() && token.id == draft[right];
    if (guessed) ++right;
    if (wanted.on_token) wanted.on_token(sequence->index, token);
    if (!guessed || sequence->choice.over()) break;
    draw(drawing);
  }
  if (!draft.empty()) note_draft(sequence, known, static_cast<std::int64_t>(right));
  if (drawing.error) {
    end(sequence, &*drawing.error);
  } else if (sequence->choice.over()) {
    end(sequence, nullptr);
  }
}

// Forgets what was computed after a wrong guess. known: tokens before the draft.
void Engine::State::note_draft(Sequence* sequence, std::int64_t known, std::int64_t accepted) {
  const std::int64_t drafted = std::ssize(sequence->draft);
  cache.set_length(sequence->slot, known + accepted);
  if (draft_model) draft_model->keep(sequence, known + accepted);
  cache.publish(sequence->slot, sequence->tokens);
  sequence->draft_length.note(drafted, accepted);
  sequence->drafted += drafted;
  sequence->accepted += accepted;
  metrics.drafted += drafted;
  metrics.accepted += accepted;
}

void Engine::State::leave_cache(Sequence* sequence) {
  if (draft_model) draft_model->leave(sequence);
  cache.close(sequence->slot);
  sequence->slot = kNotOpen;
  running.remove(sequence);
}

// Takes the request with it if this was the last of its choices.
void Engine::State::end(Sequence* sequence, const Error* error) {
  if (sequence->slot != kNotOpen) {
    leave_cache(sequence);
  } else {
    waiting.remove(sequence);
  }
  sequence->ended = true;
  Request& request = *sequence->request;
  ChoiceResult result;
  static_cast<GenerateResult&>(result) = std::move(sequence->choice.result());
  result.cached_tokens = sequence->cached_tokens;
  result.preemptions = sequence->preemptions;
  result.drafted = sequence->drafted;
  result.accepted = sequence->accepted;
  if (!result.tokens.empty()) {
    result.prefill_seconds = seconds_between(sequence->started, sequence->drew_first);
    result.decode_seconds = seconds_since(sequence->drew_first);
  }
  if (request.wanted.on_end) request.wanted.on_end(sequence->index, result, error);
  if (--request.left > 0) return;
  no_longer_new(request);
  requests.erase(request.id);
}

// What runs, while the block tables are those of the forward pass.
void Engine::State::note_parts() {
  const auto part = [&](const Sequence* sequence, std::int64_t begin, std::int64_t end, std::int64_t wanted,
                        std::int64_t drafted) {
    const std::span<const std::int32_t> blocks = cache.block_table(sequence->slot);
    StepReport::Part noted{sequence->request->id,
                           sequence->index,
                           begin,
                           end - begin,
                           wanted,
                           drafted,
                           {blocks.begin(), blocks.end()},
                           {}};
    for (const std::int32_t block : blocks) noted.references.push_back(cache.references(block));
    return noted;
  };
  for (const Planned& one : planned) {
    step_report.parts.push_back(
        part(one.sequence, one.begin, one.end, one.logits, std::ssize(one.sequence->draft)));
  }
  for (const Sequence* sequence : running.all()) {
    const auto is_it = [&](const Planned& one) { return one.sequence == sequence; };
    if (std::any_of(planned.begin(), planned.end(), is_it)) continue;
    const std::int64_t length = cache.length(sequence->slot);
    step_report.idle.push_back(part(sequence, length, length, 0, 0));
  }
  step_report.usage = cache.usage();
}

void Engine::State::report() {
  if (!observer) return;
  step_report.step = metrics.steps;
  step_report.logits = logits;
  step_report.cache = &cache;
  observer(step_report);
}

// ---- Engine

Engine::Engine(const LanguageModel& model, Executor& executor, const EngineOptions& options)
    : state_(std::make_unique<State>(model, executor, options)) {
  state_->publish_metrics();
}
Engine::~Engine() = default;

RequestId Engine::submit(EngineRequest wanted) {
  std::unique_ptr<Request> request = state_->make_request(std::move(wanted));
  RequestId id = 0;
  {
    const std::lock_guard lock(state_->mutex);
    if (state_->new_requests >= state_->options.max_waiting) {
      throw Error(ErrorKind::kBusy, fmt::format("{} requests wait already, and no more may: try again later",
                                                state_->new_requests));
    }
    ++state_->new_requests;
    id = request->id = state_->next_id++;
    state_->inbox.push_back(std::move(request));
    state_->has_news = true;
  }
  state_->arrived.notify_all();
  return id;
}

void Engine::cancel(RequestId request) {
  {
    const std::lock_guard lock(state_->mutex);
    state_->cancelled.push_back(request);
    state_->has_news = true;
  }
  state_->arrived.notify_all();
}

bool Engine::step() {
  State& s = *state_;
  const Clock::time_point start = Clock::now();
  s.step_report.parts.clear();
  s.step_report.admitted.clear();
  s.step_report.preempted.clear();
  s.step_report.idle.clear();
  s.step_report.drawn.clear();
  s.take_inbox();
  s.schedule();
  if (s.planned.empty()) {
    if (!s.running.empty() || !s.waiting.empty()) throw std::logic_error("Engine: nobody can go on");
    s.publish_metrics();
    return false;
  }
  ++s.metrics.steps;
  const Clock::time_point scheduled = Clock::now();
  s.make_drafts();
  const Clock::time_point drafted = Clock::now();
  s.forward();
  if (s.observer) s.note_parts();
  const Clock::time_point forwarded = Clock::now();
  s.draw_all();
  s.hand_out();
  const Clock::time_point drawn = Clock::now();
  s.report();
#ifndef NDEBUG
  s.cache.check();
  if (s.draft_model) s.draft_model->check();
#endif
  s.metrics.schedule_seconds += seconds_between(start, scheduled);
  s.metrics.draft_seconds += seconds_between(scheduled, drafted);
  s.metrics.forward_seconds += seconds_between(drafted, forwarded);
  s.metrics.draw_seconds += seconds_between(forwarded, drawn);
  s.publish_metrics();
  return true;
}

void Engine::wait(const std::stop_token& stop) {
  std::unique_lock lock(state_->mutex);
  // Not whether the inbox holds something: another thread's step may have taken it out.
  state_->arrived.wait(lock, stop, [&] { return state_->has_news; });
  state_->has_news = false;
}

void Engine::run(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    if (!step()) wait(stop);
  }
}

void Engine::set_observer(std::function<void(const StepReport&)> observer) {
  state_->observer = std::move(observer);
}

EngineMetrics Engine::metrics() const {
  const std::lock_guard lock(state_->mutex);
  return state_->published;
}

}  // namespace kvasir
