// kvasir.Engine: many requests at once.
//
// The thread that steps never takes the GIL: what the engine tells goes into the request's mailbox, on which
// Python waits with the GIL released.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bindings.h"
#include "kvasir/engine.h"
#include "kvasir/error.h"
#include "loaded_model.h"

namespace kvasir::python {
namespace {

// How long Python may be kept from handling a signal.
constexpr std::chrono::milliseconds kPatience{100};

// What one request has given so far. Any thread may use it.
class Mailbox {
 public:
  struct Token {
    std::int32_t choice;
    TokenId id;
    std::string text;
    std::optional<Logprobs> logprobs;
  };
  struct Answer {
    ChoiceResult result;
    std::optional<Error> error;
    bool ended = false;
  };

  explicit Mailbox(std::int32_t choices) : answers_(static_cast<std::size_t>(choices)), left_(choices) {}

  // ---- For the thread that steps

  void put(std::int32_t choice, const GeneratedToken& token) {
    Token copy{choice, token.id, token.text, std::nullopt};
    if (token.logprobs != nullptr) copy.logprobs = *token.logprobs;
    {
      const std::lock_guard lock(mutex_);
      tokens_.push_back(std::move(copy));
    }
    changed_.notify_all();
  }
  // Whether that was the last of its choices.
  bool end(std::int32_t choice, const ChoiceResult& result, const Error* error) {
    const std::lock_guard lock(mutex_);
    Answer& answer = answers_[static_cast<std::size_t>(choice)];
    answer.result = result;
    if (error != nullptr) answer.error = *error;
    answer.ended = true;
    --left_;
    changed_.notify_all();
    return left_ == 0;
  }
  // For a failure of the engine itself: what has not ended ends with it.
  void fail(const Error& error) {
    const std::lock_guard lock(mutex_);
    for (Answer& answer : answers_) {
      if (answer.ended) continue;
      answer.error = error;
      answer.ended = true;
    }
    left_ = 0;
    changed_.notify_all();
  }

  // ---- For Python

  std::optional<Token> take() {
    const std::lock_guard lock(mutex_);
    if (tokens_.empty()) return std::nullopt;
    Token token = std::move(tokens_.front());
    tokens_.pop_front();
    return token;
  }
  bool over() const {
    const std::lock_guard lock(mutex_);
    return left_ == 0;
  }
  // over() and every token taken.
  bool exhausted() const {
    const std::lock_guard lock(mutex_);
    return left_ == 0 && tokens_.empty();
  }
  // Whether it is over, or else, unless that is what is asked, there is a token to take.
  bool ready(bool until_over) const {
    const std::lock_guard lock(mutex_);
    return is_ready(until_over);
  }
  // Until it is ready, but not for long.
  void wait(bool until_over) const {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kPatience, [&] { return is_ready(until_over); });
  }
  // Only when it is over: nothing changes any more.
  const std::vector<Answer>& answers() const { return answers_; }

 private:
  bool is_ready(bool until_over) const { return left_ == 0 || (!until_over && !tokens_.empty()); }

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::deque<Token> tokens_;
  std::vector<Answer> answers_;
  std::int32_t left_;
};

class RunningEngine {
 public:
  // draft: nullptr if there is none.
  RunningEngine(std::shared_ptr<LoadedModel> model, std::shared_ptr<LoadedModel> draft,
                const EngineOptions& options)
      : model_(std::move(model)),
        draft_(std::move(draft)),
        engine_(model_->model, model_->executor, with_draft(options)) {}

  RequestId submit(EngineRequest wanted, const std::shared_ptr<Mailbox>& mailbox) {
    // The mailbox goes with the request, which the engine forgets at its end.
    wanted.on_token = [mailbox](std::int32_t choice, const GeneratedToken& token) {
      mailbox->put(choice, token);
    };
    const std::lock_guard lock(mutex_);
    if (!closed_.empty()) throw Error(ErrorKind::kRuntime, closed_);
    const auto number = std::make_shared<RequestId>(0);
    wanted.on_end = [this, mailbox, number](std::int32_t choice, const ChoiceResult& result,
                                            const Error* error) {
      if (!mailbox->end(choice, result, error)) return;
      const std::lock_guard own_lock(mutex_);  // submit() may not have noted it yet
      live_.erase(*number);
    };
    *number = engine_.submit(std::move(wanted));
    live_.emplace(*number, mailbox);
    return *number;
  }

  void cancel(RequestId id) { engine_.cancel(id); }

  bool step() {
    const std::lock_guard turn(model_->turn);
    return step_in_turn();
  }

  // Some time passes, in which the mailbox may get something: steps, if no thread does.
  void attend(const Mailbox& mailbox, bool until_over) {
    if (running_) {
      mailbox.wait(until_over);
      return;
    }
    const std::lock_guard turn(model_->turn);
    if (mailbox.ready(until_over)) return;  // others have stepped meanwhile
    if (!step_in_turn() && !mailbox.ready(false)) {
      throw std::logic_error("a request is not over, but nothing runs");
    }
  }

  void start() {
    const std::lock_guard lock(mutex_);
    if (!closed_.empty()) throw Error(ErrorKind::kRuntime, closed_);
    if (running_) throw Error(ErrorKind::kRuntime, "the engine runs already: stop() it first");
    thread_ = std::jthread([this](const std::stop_token& stop) { run(stop); });
    running_ = true;
  }

  void stop() {
    std::jthread thread;
    {
      const std::lock_guard lock(mutex_);
      thread.swap(thread_);
      running_ = false;
    }
  }

  // What is not over ends as cancelled.
  void close() {
    stop();
    const std::lock_guard turn(model_->turn);
    bool any = false;
    {
      const std::lock_guard lock(mutex_);
      if (!closed_.empty()) return;
      closed_ = "the engine is closed";
      for (const auto& [id, mailbox] : live_) engine_.cancel(id);
      any = !live_.empty();
    }
    if (any) engine_.step();
  }

  bool is_running() const { return running_; }
  std::size_t live() const {
    const std::lock_guard lock(mutex_);
    return live_.size();
  }
  EngineMetrics metrics() const { return engine_.metrics(); }

 private:
  EngineOptions with_draft(EngineOptions options) const {
    if (draft_ != nullptr) options.draft_model = &draft_->model;
    return options;
  }

  bool step_in_turn() {
    {
      const std::lock_guard lock(mutex_);
      if (!closed_.empty()) throw Error(ErrorKind::kRuntime, closed_);
    }
    try {
      return engine_.step();
    } catch (const std::exception& error) {
      fail(error.what());
      throw;
    }
  }

  void fail(const std::string& why) {
    const std::lock_guard lock(mutex_);
    closed_ = "the engine failed: " + why;
    for (const auto& [id, mailbox] : live_) mailbox->fail(Error(ErrorKind::kRuntime, closed_));
    live_.clear();
  }

  void run(const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      try {
        if (step()) continue;
      } catch (const std::exception&) {
        return;  // all requests know
      }
      engine_.wait(stop);
    }
  }

  std::shared_ptr<LoadedModel> model_, draft_;
  Engine engine_;  // steps only in the model's turn
  std::atomic<bool> running_ = false;

  mutable std::mutex mutex_;  // of what is here; taken inside the turn, never around it
  std::string closed_;        // why nothing more can be submitted
  std::map<RequestId, std::shared_ptr<Mailbox>> live_;
  std::jthread thread_;  // last: ends before the rest does
};

// A request as Python holds it. Dropping it cancels it.
class PendingRequest {
 public:
  PendingRequest(std::shared_ptr<RunningEngine> engine, const EngineRequest& wanted)
      : engine_(std::move(engine)),
        mailbox_(std::make_shared<Mailbox>(std::max(wanted.n, 0))),
        id_(engine_->submit(wanted, mailbox_)) {}
  PendingRequest(const PendingRequest&) = delete;
  PendingRequest& operator=(const PendingRequest&) = delete;
  ~PendingRequest() { cancel(); }

  void cancel() {
    if (!mailbox_->over()) engine_->cancel(id_);
  }
  bool done() const { return mailbox_->over(); }

  // (choice, id, text, logprob, [(id, logprob), ...]), or None when all choices are over.
  nb::object next() {
    std::optional<Mailbox::Token> token;
    while (!(token = mailbox_->take()).has_value()) {
      if (mailbox_->exhausted()) {
        for (const Mailbox::Answer& answer : mailbox_->answers()) throw_error_of(answer);
        return nb::none();
      }
      attend(false);
    }
    if (!token->logprobs.has_value()) {
      return nb::make_tuple(token->choice, token->id, token->text, nb::none(), nb::none());
    }
    return nb::make_tuple(token->choice, token->id, token->text, token->logprobs->chosen,
                          token->logprobs->top);
  }

  // Of each choice (tokens, text, finish_reason, stop_reason, cached_tokens, preemptions, drafted, accepted,
  // prefill_seconds, decode_seconds).
  nb::list results() {
    while (!mailbox_->over()) attend(true);
    nb::list all;
    for (const Mailbox::Answer& answer : mailbox_->answers()) {
      throw_error_of(answer);
      const ChoiceResult& result = answer.result;
      all.append(nb::make_tuple(result.tokens, result.text,
                                std::string(finish_reason_name(result.finish_reason)), result.stop_reason,
                                result.cached_tokens, result.preemptions, result.drafted, result.accepted,
                                result.prefill_seconds, result.decode_seconds));
    }
    return all;
  }

 private:
  static void throw_error_of(const Mailbox::Answer& answer) {
    if (answer.error.has_value()) throw Error(*answer.error);
  }

  void attend(bool until_over) {
    const nb::gil_scoped_release release;
    engine_->attend(*mailbox_, until_over);
    check_signals();
  }

  std::shared_ptr<RunningEngine> engine_;
  std::shared_ptr<Mailbox> mailbox_;
  RequestId id_;
};

nb::typed<nb::dict, nb::str, nb::any> metrics_of(const RunningEngine& engine) {
  const EngineMetrics metrics = engine.metrics();
  nb::dict fields;
  fields["running"] = metrics.running;
  fields["waiting"] = metrics.waiting;
  fields["steps"] = metrics.steps;
  fields["computed_tokens"] = metrics.computed_tokens;
  fields["generated_tokens"] = metrics.generated_tokens;
  fields["preemptions"] = metrics.preemptions;
  fields["drafted"] = metrics.drafted;
  fields["accepted"] = metrics.accepted;
  fields["schedule_seconds"] = metrics.schedule_seconds;
  fields["draft_seconds"] = metrics.draft_seconds;
  fields["forward_seconds"] = metrics.forward_seconds;
  fields["draw_seconds"] = metrics.draw_seconds;
  fields["kv_blocks"] = metrics.cache.blocks;
  fields["kv_blocks_free"] = metrics.cache.free;
  fields["kv_blocks_cached"] = metrics.cache.cached;
  fields["kv_blocks_referenced"] = metrics.cache.referenced;
  fields["kv_evictions"] = metrics.cache.evictions;
  fields["kv_copies"] = metrics.cache.copies;
  return fields;
}

}  // namespace

void bind_engine(nb::module_& module) {
  nb::class_<EngineOptions>(module, "EngineOptions")
      .def(nb::init<>())
      .def_rw("kv_bytes", &EngineOptions::kv_bytes)
      .def_rw("kv_blocks", &EngineOptions::kv_blocks)
      .def_rw("kv_type", &EngineOptions::kv_type)
      .def_rw("share_prefixes", &EngineOptions::share_prefixes)
      .def_rw("max_running", &EngineOptions::max_running)
      .def_rw("max_waiting", &EngineOptions::max_waiting)
      .def_rw("step_tokens", &EngineOptions::step_tokens);
  nb::enum_<Speculation>(module, "Speculation")
      .value("NONE", Speculation::kNone)
      .value("NGRAM", Speculation::kNgram)
      .value("DRAFT_MODEL", Speculation::kDraftModel);
  nb::class_<EngineRequest, CompletionRequest>(module, "EngineRequest")
      .def(nb::init<>())
      .def_rw("n", &EngineRequest::n)
      .def_rw("priority", &EngineRequest::priority)
      .def_rw("cache_salt", &EngineRequest::cache_salt)
      .def_rw("speculation", &EngineRequest::speculation);
  const auto released = nb::call_guard<nb::gil_scoped_release>();
  nb::class_<RunningEngine>(module, "RunningEngine")
      .def(
          "__init__",
          [](RunningEngine* self, std::shared_ptr<LoadedModel> model,
             std::optional<std::shared_ptr<LoadedModel>> draft, const EngineOptions& options) {
            new (self) RunningEngine(std::move(model), draft ? std::move(*draft) : nullptr, options);
          },
          nb::arg("model"), nb::arg("draft").none(), nb::arg("options"))
      .def("step", &RunningEngine::step, released)
      .def("start", &RunningEngine::start)
      .def("stop", &RunningEngine::stop, released)
      .def("close", &RunningEngine::close, released)
      .def("metrics", &metrics_of)
      .def_prop_ro("is_running", &RunningEngine::is_running)
      .def_prop_ro("live", &RunningEngine::live);
  nb::class_<PendingRequest>(module, "PendingRequest")
      .def("__init__",
           [](PendingRequest* self, std::shared_ptr<RunningEngine> engine, const EngineRequest& wanted) {
             new (self) PendingRequest(std::move(engine), wanted);
           })
      .def("next", &PendingRequest::next)
      .def("results", &PendingRequest::results)
      .def("cancel", &PendingRequest::cancel)
      .def_prop_ro("done", &PendingRequest::done);
}

}  // namespace kvasir::python
