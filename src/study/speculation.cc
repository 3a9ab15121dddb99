// Guessing tokens: how much faster an answer comes, where it repeats its prompt and where it does not.
#include <fmt/format.h>

#include <array>
#include <functional>
#include <string>
#include <utility>

#include "engine/measure.h"
#include "engine/timed_requests.h"
#include "kvasir/error.h"
#include "kvasir/study.h"
#include "study/context.h"

namespace kvasir {
namespace {

void check_options(const SpeculationStudyOptions& options) {
  check_list("new", std::array{options.new_tokens}, 2);
  check_list("repetitions", std::array{options.repetitions}, 1);
}

// As a user's message, if the model knows conversations.
std::vector<TokenId> encode(const LanguageModel& model, const std::string& text) {
  if (!model.has_chat_template()) return model.encode_prompt(text, ControlTokens::kAsText);
  return model.chat_template().encode(model.tokenizer(), std::array{ChatMessage{"user", text}}, true);
}

EngineOptions engine_options(const SpeculationStudyOptions& options, std::int64_t positions) {
  EngineOptions engine;
  engine.kv_blocks = PagedKvCache::blocks_of(positions);
  engine.kv_type = options.kv_type;
  engine.max_running = 1;
  engine.draft_model = options.draft_model;
  return engine;
}

struct Outcome {
  std::vector<TokenId> tokens;
  double seconds;  // from the first token to the last
  std::int64_t drafted, accepted;
};

Outcome run(TimedRequests& requests, const EngineRequest& wanted) {
  const EngineMetrics before = requests.engine().metrics();
  const std::size_t number = requests.submit(wanted);
  while (requests.step()) {
  }
  const EngineMetrics after = requests.engine().metrics();
  const auto& times = requests.times(number);
  if (times.size() < 2) {
    throw Error(ErrorKind::kRuntime,
                fmt::format("the answer has {} tokens, too few to take its time: choose another prompt",
                            times.size()));
  }
  return {requests.tokens(number), seconds_between(times.front(), times.back()),
          after.drafted - before.drafted, after.accepted - before.accepted};
}

// Each kind of guess in turn with none, repetition by repetition.
std::vector<SpeculationRow> study_text(const LanguageModel& model, Executor& executor,
                                       const SpeculationStudyOptions& options, const SpeculationText& text,
                                       const std::vector<Speculation>& kinds,
                                       const std::function<void()>& before_each) {
  EngineRequest wanted;
  wanted.prompt = encode(model, text.prompt);
  wanted.max_tokens = options.new_tokens;
  wanted.sampling.temperature = text.temperature;
  const std::int64_t positions = std::ssize(wanted.prompt) + options.new_tokens;
  check_context(model, positions);
  TimedRequests requests(model, executor, engine_options(options, positions));
  std::vector<std::vector<double>> seconds(kinds.size());
  std::vector<Outcome> outcomes(kinds.size());
  for (std::int64_t repetition = 0; repetition <= options.repetitions; ++repetition) {
    for (std::size_t i = 0; i < kinds.size(); ++i) {
      before_each();
      wanted.speculation = kinds[i];
      outcomes[i] = run(requests, wanted);
      if (outcomes[i].tokens != outcomes.front().tokens) {
        throw Error(ErrorKind::kRuntime, "guesses have changed the answer: a bug of the engine");
      }
      if (repetition > 0) seconds[i].push_back(outcomes[i].seconds);  // the first one warms up
    }
  }
  std::vector<SpeculationRow> rows;
  for (std::size_t i = 1; i < kinds.size(); ++i) {
    rows.push_back({text.name, kinds[i], std::ssize(outcomes[i].tokens), percentile(seconds.front(), 0.5),
                    percentile(seconds[i], 0.5), outcomes[i].drafted, outcomes[i].accepted});
  }
  return rows;
}

}  // namespace

std::string_view speculation_name(Speculation speculation) {
  switch (speculation) {
    case Speculation::kNone:
      return "none";
    case Speculation::kNgram:
      return "ngram";
    case Speculation::kDraftModel:
      return "draft";
  }
  return "";
}

std::vector<SpeculationRow> study_speculation(const LanguageModel& model, Executor& executor,
                                              const SpeculationStudyOptions& options,
                                              const StudyProgress& progress) {
  check_options(options);
  std::vector<Speculation> kinds = {Speculation::kNone, Speculation::kNgram};
  if (options.draft_model != nullptr) kinds.push_back(Speculation::kDraftModel);
  const std::int64_t all = std::ssize(options.texts) * std::ssize(kinds) * (options.repetitions + 1);
  std::int64_t done = 0;
  std::vector<SpeculationRow> rows;
  for (const SpeculationText& text : options.texts) {
    const auto found = study_text(model, executor, options, text, kinds, [&] {
      if (progress) progress(done, all);
      ++done;
    });
    rows.insert(rows.end(), found.begin(), found.end());
  }
  return rows;
}

}  // namespace kvasir
