// kvasir trace: what the engine does with some prompts, step by step.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json_writer.h"
#include "command.h"
#include "interrupt.h"
#include "kvasir/engine.h"
#include "kvasir/error.h"

namespace kvasir::cli {
namespace {

struct Options {
  ModelOptions model;
  SamplingOptions sampling;
  SpeculationOptions speculation;
  std::vector<std::string> prompts;
  std::string file;
  bool parse_control = false;
  std::int64_t every = 0;
  std::int64_t kv_blocks = 64;
  int max_running = 8;
  std::int64_t step_tokens = 64;
  bool no_sharing = false;
  int choices = 1;
  bool json = false;

  EngineOptions engine(std::size_t requests, const LanguageModel* draft) const {
    EngineOptions options;
    options.kv_blocks = kv_blocks;
    options.kv_type = model.kv_type();
    options.share_prefixes = !no_sharing;
    options.max_running = max_running;
    options.max_waiting = static_cast<std::int64_t>(requests);
    options.step_tokens = step_tokens;
    options.draft_model = draft;
    return options;
  }
};

// The arguments, else the lines of the file or of standard input that are not empty.
std::vector<std::string> read_prompts(const Options& options) {
  if (!options.prompts.empty() && !options.file.empty()) {
    throw Error(ErrorKind::kInvalidArgument, "give the prompts or -f FILE, not both");
  }
  if (!options.prompts.empty()) return options.prompts;
  PromptOptions source;
  source.file = options.file;
  const std::string text = source.read_text();
  std::vector<std::string> prompts;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    if (end > begin) prompts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  if (prompts.empty()) throw Error(ErrorKind::kInvalidArgument, "there is no prompt");
  return prompts;
}

using Key = std::pair<RequestId, std::int32_t>;  // a request's choice

// What is known of one choice.
struct Answer {
  std::size_t drawn = 0;
  std::int64_t computed = 0;  // positions that have been through the model at least once
  std::optional<ChoiceResult> result;
  std::string error;  // why it failed
};

struct Prompt {
  std::string text;
  std::vector<TokenId> tokens;
};

enum class Work { kPrefill, kDecode, kRecompute };

std::string_view work_name(Work work) {
  switch (work) {
    case Work::kPrefill:
      return "prefill";
    case Work::kDecode:
      return "decode";
    case Work::kRecompute:
      return "recompute";
  }
  return "";
}

// One step, as it is shown.
struct Step {
  const StepReport& report;
  std::vector<Work> work;          // of each part
  std::vector<RequestId> arrived;  // since the last step
  std::vector<Key> waiting;
  std::vector<Key> ended;
  std::int64_t evictions, copies;
};

class Shown {
 public:
  virtual ~Shown() = default;
  virtual void begin(const std::map<RequestId, Prompt>& prompts) = 0;
  virtual void step(const Step& step) = 0;
  virtual void end(const std::map<Key, Answer>& answers, const EngineMetrics& metrics) = 0;
};

// ---- For people

std::string counted(std::int64_t count, std::string_view what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

std::string shortened(std::string_view text) {
  constexpr std::size_t kMost = 60;
  if (text.size() <= kMost) return in_quotes(text);
  std::size_t end = kMost;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;  // whole characters
  return in_quotes(text.substr(0, end)) + "...";
}

std::string positions(const StepReport::Part& part) {
  if (part.tokens == 1) return fmt::format("{}", part.first_position);
  return fmt::format("{}..{}", part.first_position, part.first_position + part.tokens - 1);
}

// Neighbours with the same number of users together: "0..2×3 7".
std::string block_table(const StepReport::Part& part) {
  std::string text;
  for (std::size_t begin = 0; begin < part.blocks.size();) {
    std::size_t end = begin + 1;
    while (end < part.blocks.size() && part.blocks[end] == part.blocks[end - 1] + 1 &&
           part.references[end] == part.references[begin]) {
      ++end;
    }
    text += fmt::format(" {}", part.blocks[begin]);
    if (end - begin > 1) text += fmt::format("..{}", part.blocks[end - 1]);
    if (part.references[begin] > 1) text += fmt::format("×{}", part.references[begin]);
    begin = end;
  }
  return text;
}

class Text : public Shown {
 public:
  Text(const Options& options, const LanguageModel& model) : options_(options), model_(model) {}

  void begin(const std::map<RequestId, Prompt>& prompts) override {
    print(
        fmt::format("pool: {} blocks of {} positions; a step: at most {} sequences, {} tokens; prefixes {}\n",
                    options_.kv_blocks, PagedKvCache::kBlockPositions, options_.max_running,
                    options_.step_tokens, options_.no_sharing ? "not shared" : "shared"));
    for (const auto& [id, prompt] : prompts) {
      prompt_tokens_[id] = std::ssize(prompt.tokens);
      print(fmt::format("r{}: {} {}\n", id, counted(std::ssize(prompt.tokens), "token"),
                        shortened(prompt.text)));
    }
    print("blocks 0..2×3 7: blocks 0, 1 and 2, each used by 3 sequences, and 7\n");
  }

  void step(const Step& step) override {
    const StepReport& report = step.report;
    const PagedKvCache::Usage& pool = report.usage;
    std::int64_t tokens = 0;
    for (const StepReport::Part& part : report.parts) tokens += part.tokens;
    std::string text =
        fmt::format("\nstep {}: {}; pool {} = {} free + {} cached + {} used\n", report.step,
                    counted(tokens, "token"), pool.blocks, pool.free, pool.cached, pool.referenced);
    text += events(step);
    for (std::size_t i = 0; i < report.parts.size(); ++i) {
      const StepReport::Part& part = report.parts[i];
      std::string drawn = part.logits > 0 ? draws(step, {part.request, part.choice}) : "prompt goes on";
      if (part.drafted > 0) drawn = fmt::format("guesses {}, {}", part.drafted, drawn);
      text += line(part, work_name(step.work[i]), drawn);
    }
    for (const StepReport::Part& part : report.idle) text += line(part, "idle", "");
    for (const StepReport::Drawn& drawn : report.drawn) {
      const Key key{drawn.request, drawn.choice};
      if (has_part(report, key)) continue;
      text += fmt::format("  {:<6} shares all of {}, {}\n", name(key), name({drawn.request, 0}),
                          draws(step, key));
    }
    print(text);
  }

  void end(const std::map<Key, Answer>& answers, const EngineMetrics& metrics) override {
    std::string text = "\n";
    for (const auto& [key, answer] : answers) {
      const ChoiceResult& result = *answer.result;
      const std::string reason =
          answer.error.empty() ? std::string(finish_reason_name(result.finish_reason)) : answer.error;
      text += fmt::format(
          "{:<5} {}, {}; {} of {} prompt tokens cached, preempted {}{}\n      {}\n", name(key),
          counted(std::ssize(result.tokens), "token"), reason, result.cached_tokens,
          prompt_tokens_.at(key.first), times(result.preemptions),
          result.drafted == 0 ? "" : fmt::format(", {} of {} guesses right", result.accepted, result.drafted),
          in_quotes(result.text));
    }
    text +=
        fmt::format("{}: {} computed, {} drawn; {}, {}, {}\n", counted(metrics.steps, "step"),
                    counted(metrics.computed_tokens, "token"), metrics.generated_tokens,
                    counted(metrics.preemptions, "preemption"), counted(metrics.cache.evictions, "eviction"),
                    metrics.cache.copies == 1 ? "1 copy" : fmt::format("{} copies", metrics.cache.copies));
    print(text);
  }

 private:
  static std::string times(std::int64_t count) {
    return count == 0 ? "never" : count == 1 ? "once" : fmt::format("{} times", count);
  }

  std::string name(const Key& key) const {
    return options_.choices == 1 ? fmt::format("r{}", key.first)
                                 : fmt::format("r{}.{}", key.first, key.second);
  }

  static bool has_part(const StepReport& report, const Key& key) {
    return std::any_of(report.parts.begin(), report.parts.end(),
                       [&](const StepReport::Part& part) { return Key(part.request, part.choice) == key; });
  }

  // What happened before the pass: one line of each kind, if any.
  std::string events(const Step& step) const {
    std::vector<std::string> arrived, preempted, admitted, evicted, copied, waiting;
    for (const RequestId id : step.arrived) arrived.push_back(fmt::format("r{}", id));
    for (const StepReport::Preempted& one : step.report.preempted) {
      preempted.push_back(name({one.request, one.choice}));
    }
    for (const StepReport::Admitted& one : step.report.admitted) {
      if (!has_part(step.report, {one.request, one.choice})) continue;  // a choice that joins: has its line
      admitted.push_back(name({one.request, one.choice}));
      if (one.cached_positions > 0) {
        admitted.back() += fmt::format(" (finds positions 0..{} in the cache)", one.cached_positions - 1);
      }
    }
    if (step.evictions > 0) evicted.push_back(counted(step.evictions, "cached block"));
    if (step.copies > 0) copied.push_back(counted(step.copies, "shared block") + ", before writing to it");
    for (const Key& key : step.waiting) waiting.push_back(name(key));
    std::string text;
    const auto add = [&](std::string_view what, const std::vector<std::string>& items) {
      if (!items.empty()) text += fmt::format("  {}: {}\n", what, fmt::join(items, ", "));
    };
    add("arrived", arrived);
    add("preempted, its blocks go to others", preempted);
    add("admitted", admitted);
    add("evicted", evicted);
    add("copied", copied);
    add("waiting", waiting);
    return text;
  }

  std::string line(const StepReport::Part& part, std::string_view work, const std::string& drawn) const {
    return fmt::format("  {:<6} {:<9} {:<9} {:<30} blocks{}\n", name({part.request, part.choice}), work,
                       part.tokens == 0 ? "" : positions(part), drawn, block_table(part));
  }

  std::string draws(const Step& step, const Key& key) const {
    std::vector<std::string> tokens;
    for (const StepReport::Drawn& drawn : step.report.drawn) {
      if (Key(drawn.request, drawn.choice) != key) continue;
      tokens.push_back(
          fmt::format("{} {}", drawn.token, in_quotes(model_.tokenizer().decode({&drawn.token, 1}, false))));
    }
    if (tokens.empty()) return "fails";
    const bool last = std::find(step.ended.begin(), step.ended.end(), key) != step.ended.end();
    return fmt::format("draws {}{}", fmt::join(tokens, ", "), last ? ", ends" : "");
  }

  const Options& options_;
  const LanguageModel& model_;
  std::map<RequestId, std::int64_t> prompt_tokens_;
};

// ---- For programs

class Json : public Shown {
 public:
  Json(const Options& options, const LanguageModel& model, const EngineRequest& wanted) : model_(model) {
    json_.begin_object()
        .field("model", model.path())
        .field("fingerprint", model.fingerprint(options.model.kv_type()));
    json_.field("seed", wanted.sampling.seed).field("kv_blocks", options.kv_blocks);
    json_.field("block_positions", PagedKvCache::kBlockPositions).field("max_running", options.max_running);
    json_.field("step_tokens", options.step_tokens).field("share_prefixes", !options.no_sharing);
    json_.field("choices", options.choices).field("every", options.every);
  }

  void begin(const std::map<RequestId, Prompt>& prompts) override {
    json_.key("requests").begin_array();
    for (const auto& [id, prompt] : prompts) {
      json_.begin_object().field("request", id).field("prompt", prompt.text);
      write_ids(json_.key("prompt_ids"), prompt.tokens);
      json_.end_object();
    }
    json_.end_array().key("steps").begin_array();
  }

  void step(const Step& step) override {
    const StepReport& report = step.report;
    json_.begin_object().field("step", report.step).key("arrived").begin_array();
    for (const RequestId id : step.arrived) json_.value(id);
    json_.end_array();
    json_.key("preempted").begin_array();
    for (const StepReport::Preempted& one : report.preempted)
      begin_choice({one.request, one.choice}).end_object();
    json_.end_array().key("admitted").begin_array();
    for (const StepReport::Admitted& one : report.admitted) {
      begin_choice({one.request, one.choice}).field("cached_positions", one.cached_positions).end_object();
    }
    json_.end_array().key("parts").begin_array();
    for (std::size_t i = 0; i < report.parts.size(); ++i)
      write_part(report.parts[i], work_name(step.work[i]));
    json_.end_array().key("idle").begin_array();
    for (const StepReport::Part& part : report.idle) write_part(part, "");
    json_.end_array().key("drawn").begin_array();
    for (const StepReport::Drawn& one : report.drawn) {
      begin_choice({one.request, one.choice}).field("token", one.token);
      json_.field("text", model_.tokenizer().decode({&one.token, 1}, false)).end_object();
    }
    json_.end_array();
    write_keys("waiting", step.waiting);
    write_keys("ended", step.ended);
    const PagedKvCache::Usage& pool = report.usage;
    json_.key("pool").begin_object().field("blocks", pool.blocks).field("free", pool.free);
    json_.field("cached", pool.cached).field("referenced", pool.referenced).end_object();
    json_.field("evictions", step.evictions).field("copies", step.copies).end_object();
  }

  void end(const std::map<Key, Answer>& answers, const EngineMetrics& metrics) override {
    json_.end_array().key("results").begin_array();
    for (const auto& [key, answer] : answers) {
      const ChoiceResult& result = *answer.result;
      write_ids(begin_choice(key).key("tokens"), result.tokens);
      json_.field("text", result.text);
      write_optional("finish_reason", answer.error.empty() ? finish_reason_name(result.finish_reason) : "");
      write_optional("stop_reason", result.stop_reason.value_or(""));
      json_.field("cached_tokens", result.cached_tokens).field("preemptions", result.preemptions);
      json_.field("drafted", result.drafted).field("accepted", result.accepted);
      write_optional("error", answer.error);
      json_.end_object();
    }
    json_.end_array().key("totals").begin_object();
    json_.field("steps", metrics.steps).field("computed_tokens", metrics.computed_tokens);
    json_.field("generated_tokens", metrics.generated_tokens).field("preemptions", metrics.preemptions);
    json_.field("drafted", metrics.drafted).field("accepted", metrics.accepted);
    json_.field("evictions", metrics.cache.evictions).field("copies", metrics.cache.copies).end_object();
    print(json_.end_object().text() + "\n");
  }

 private:
  JsonWriter& begin_choice(const Key& key) {
    return json_.begin_object().field("request", key.first).field("choice", key.second);
  }

  void write_keys(std::string_view field, const std::vector<Key>& keys) {
    json_.key(field).begin_array();
    for (const Key& key : keys) begin_choice(key).end_object();
    json_.end_array();
  }

  void write_optional(std::string_view field, std::string_view text) {
    json_.key(field);
    if (text.empty()) {
      json_.null();
    } else {
      json_.value(text);
    }
  }

  void write_part(const StepReport::Part& part, std::string_view work) {
    begin_choice({part.request, part.choice});
    if (!work.empty()) {
      json_.field("work", work).field("tokens", part.tokens).field("first_position", part.first_position);
      json_.field("last_position", part.first_position + part.tokens - 1).field("draws", part.logits > 0);
      json_.field("drafted", part.drafted);
    }
    write_ids(json_.key("blocks"), part.blocks);
    write_ids(json_.key("references"), part.references);
    json_.end_object();
  }

  const LanguageModel& model_;
  JsonWriter json_;
};

// ---- The run

class Trace {
 public:
  Trace(Engine& engine, Shown& shown) : engine_(engine), shown_(shown) {
    engine.set_observer([this](const StepReport& report) { see(report); });
  }

  void submit(EngineRequest wanted) {
    const std::int64_t prompt_tokens = std::ssize(wanted.prompt);
    const std::int32_t choices = wanted.n;
    const RequestId next = submitted_ + 1;
    wanted.on_end = [this, next](std::int32_t choice, const ChoiceResult& result, const Error* error) {
      answers_[{next, choice}].result = result;
      if (error != nullptr) answers_[{next, choice}].error = error->what();
      ended_.emplace_back(next, choice);
    };
    submitted_ = engine_.submit(std::move(wanted));
    arrived_.push_back(next);
    prompt_tokens_[next] = prompt_tokens;
    for (std::int32_t choice = 0; choice < choices; ++choice) answers_[{next, choice}] = {};
  }

  void cancel_all() {
    for (RequestId id = 1; id <= submitted_; ++id) engine_.cancel(id);
    engine_.step();
  }

  // Error(kRuntime) if a request failed, after everything has been shown.
  void end() {
    shown_.end(answers_, engine_.metrics());
    for (const auto& [key, answer] : answers_) {
      if (answer.error.empty()) continue;
      throw Error(ErrorKind::kRuntime, fmt::format("request {}: {}", key.first, answer.error));
    }
  }

 private:
  void see(const StepReport& report) {
    Step step{report, {}, std::exchange(arrived_, {}), {}, std::exchange(ended_, {}), 0, 0};
    for (const StepReport::Part& part : report.parts) step.work.push_back(work_of(part));
    for (const StepReport::Admitted& one : report.admitted) {
      std::int64_t& computed = answers_[{one.request, one.choice}].computed;
      computed = std::max(computed, one.cached_positions);
    }
    step.waiting = waiting(step);
    for (const StepReport::Drawn& one : report.drawn) ++answers_[{one.request, one.choice}].drawn;
    step.evictions = report.usage.evictions - std::exchange(evictions_, report.usage.evictions);
    step.copies = report.usage.copies - std::exchange(copies_, report.usage.copies);
    shown_.step(step);
  }

  Work work_of(const StepReport::Part& part) {
    std::int64_t& computed = answers_[{part.request, part.choice}].computed;
    const bool again = part.first_position < computed;
    computed = std::max(computed, part.first_position + part.tokens - part.drafted);
    if (again) return Work::kRecompute;
    return part.first_position < prompt_tokens_.at(part.request) ? Work::kPrefill : Work::kDecode;
  }

  // Who had no place in the pass. Choices but the first wait for it until it has drawn a token.
  std::vector<Key> waiting(const Step& step) const {
    std::vector<Key> keys;
    for (const auto& [key, answer] : answers_) {
      const auto is_it = [&, k = key](const auto& one) { return Key(one.request, one.choice) == k; };
      const StepReport& report = step.report;
      if (std::any_of(report.parts.begin(), report.parts.end(), is_it)) continue;
      if (std::any_of(report.idle.begin(), report.idle.end(), is_it)) continue;
      if (std::any_of(report.admitted.begin(), report.admitted.end(), is_it)) continue;
      if (key.second > 0 && answers_.at({key.first, 0}).drawn == 0) continue;
      if (!answer.result.has_value()) keys.push_back(key);
    }
    return keys;
  }

  Engine& engine_;
  Shown& shown_;
  RequestId submitted_ = 0;
  std::map<RequestId, std::int64_t> prompt_tokens_;
  std::map<Key, Answer> answers_;
  std::vector<RequestId> arrived_;
  std::vector<Key> ended_;
  std::int64_t evictions_ = 0, copies_ = 0;
};

void check(const Options& options) {
  if (options.every < 0) {
    throw Error(ErrorKind::kInvalidArgument, fmt::format("every is {}, must not be negative", options.every));
  }
  if (options.kv_blocks < 1) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("kv_blocks is {}, must be at least 1", options.kv_blocks));
  }
  if (options.choices < 1 || options.choices > 128) {
    throw Error(ErrorKind::kInvalidArgument, fmt::format("choices is {}, must be 1 to 128", options.choices));
  }
}

// Steps until all is over. Whether it was interrupted: what is not over is cancelled then.
bool drive(Engine& engine, Trace& trace, const std::vector<EngineRequest>& requests, std::int64_t every) {
  const InterruptFlag interrupt;
  std::size_t arrived = 0;
  std::int64_t clock = 0, next_arrival = 0;  // in steps
  while (!interrupt.raised()) {
    for (; arrived < requests.size() && clock >= next_arrival; ++arrived) {
      trace.submit(requests[arrived]);
      next_arrival = clock + every;
    }
    if (engine.step()) {
      ++clock;
    } else if (arrived < requests.size()) {
      clock = next_arrival;  // nobody is there: the next one comes at once
    } else {
      break;
    }
  }
  if (!interrupt.raised()) return false;
  while (arrived < requests.size()) trace.submit(requests[arrived++]);
  trace.cancel_all();
  return true;
}

int run(const Options& options) {
  check(options);
  EngineRequest wanted;
  static_cast<CompletionRequest&>(wanted) = options.sampling.request({}, options.model.kv_type());
  wanted.n = options.choices;
  wanted.speculation = options.speculation.kind();
  const std::vector<std::string> texts = read_prompts(options);
  const ControlTokens control = options.parse_control ? ControlTokens::kParse : ControlTokens::kAsText;

  Executor executor(options.model.threads);
  const LanguageModel model = options.model.load(executor);
  const std::optional<LanguageModel> draft = options.speculation.load_draft(options.model, executor);
  const EngineOptions engine_options = options.engine(texts.size(), draft ? &*draft : nullptr);
  Engine engine(model, executor, engine_options);
  std::vector<EngineRequest> requests;
  std::map<RequestId, Prompt> prompts;
  {
    // What can never run is refused before anything is shown.
    Engine trial(model, executor, engine_options);
    for (const std::string& text : texts) {
      requests.push_back(wanted);
      requests.back().prompt = model.encode_prompt(text, control);
      prompts[trial.submit(requests.back())] = {text, requests.back().prompt};
    }
  }

  std::unique_ptr<Shown> shown;
  if (options.json) {
    shown = std::make_unique<Json>(options, model, wanted);
  } else {
    shown = std::make_unique<Text>(options, model);
  }
  shown->begin(prompts);
  Trace trace(engine, *shown);
  const bool interrupted = drive(engine, trace, requests, options.every);
  trace.end();
  return interrupted ? kInterrupted : kDone;
}

}  // namespace

void add_trace(CLI::App& program, Action& chosen) {
  CLI::App& command =
      *program.add_subcommand("trace", "Show step by step what the engine does with some prompts");
  const auto options = std::make_shared<Options>();
  command.add_option("prompts", options->prompts, "The prompts (default: the lines of standard input)");
  command.add_option("-f,--file", options->file,
                     "Read the prompts from this file, one a line; not empty ones");
  command.add_flag("--parse-control", options->parse_control,
                   "Spellings of control tokens in the prompts mean those tokens");
  options->model.add(command);
  options->sampling.max_tokens = 8;
  options->sampling.add(command);
  command.get_option("--max-tokens")
      ->description("Tokens to generate for each prompt at most")
      ->default_str("8");
  command.remove_option(command.get_option("--context"));  // the pool's size limits it
  add_number(command, "--every", options->every, "A prompt arrives every so many steps; 0: all at once");
  add_number(command, "--choices", options->choices, "Answers to each prompt");
  add_number(command, "--kv-blocks", options->kv_blocks, "Blocks in the pool, of 16 positions each");
  add_number(command, "--max-running", options->max_running, "Sequences in one step at most");
  add_number(command, "--step-tokens", options->step_tokens,
             "Tokens in one step at most, of all sequences; at least --max-running");
  command.add_flag("--no-sharing", options->no_sharing, "Do not look for prefixes in the cache");
  options->speculation.add(command);
  command.add_flag("--json", options->json, "One JSON document instead of the text");
  command.callback([options, &chosen] { chosen = [options] { return run(*options); }; });
}

}  // namespace kvasir::cli
