// A long prompt comes while others decode: what it costs to be computed chunk by chunk, and what that saves
// the others.
#include <algorithm>
#include <chrono>

#include "engine/measure.h"
#include "engine/timed_requests.h"
#include "kvasir/study.h"
#include "study/context.h"

namespace kvasir {
namespace {

constexpr std::int64_t kUserPrompt = 16;
constexpr std::size_t kQuietSteps = 8;  // of the users by themselves

struct Times {
  double prefill, stall, decode;
};

void check_options(const LanguageModel& model, const ChunkStudyOptions& options) {
  check_list("chunk", options.chunks, 1);
  check_list("prompt", std::array{options.prompt}, 1);
  check_list("users", std::array{options.users}, 1);
  check_list("repetitions", std::array{options.repetitions}, 1);
  check_context(model, options.prompt + 1);
}

class ChunkRuns {
 public:
  ChunkRuns(const LanguageModel& model, Executor& executor, const ChunkStudyOptions& options,
            std::int64_t chunk)
      : model_(model), options_(options), requests_(model, executor, engine_options(model, options, chunk)) {}

  Times run() {
    const std::size_t first_user = requests_.submitted();
    for (std::int64_t i = 0; i < options_.users; ++i) {
      requests_.submit(tokens(kUserPrompt, static_cast<std::uint32_t>(i + 1)), std::nullopt);
    }
    const std::size_t last_user = requests_.submitted() - 1;
    requests_.await_tokens(last_user, kQuietSteps + 1);
    const std::vector<double> quiet = gaps(first_user, last_user, 1);

    const auto arrival = TimedRequests::Clock::now();
    std::vector<std::size_t> tokens_before;
    for (std::size_t user = first_user; user <= last_user; ++user) {
      tokens_before.push_back(requests_.times(user).size());
    }
    const std::size_t prompt = requests_.submit(tokens(options_.prompt, 0x10000), 1);
    requests_.await_tokens(prompt, 1);
    const double prefill = seconds_between(arrival, requests_.times(prompt).front());
    double stall = 0.0;
    for (std::size_t user = first_user; user <= last_user; ++user) {
      stall = std::max(stall, std::ranges::max(gaps(user, user, tokens_before[user - first_user])));
    }
    requests_.cancel_all();
    return {prefill, stall, percentile(quiet, 0.5)};
  }

 private:
  static EngineOptions engine_options(const LanguageModel& model, const ChunkStudyOptions& options,
                                      std::int64_t chunk) {
    const auto steps = [&](std::int64_t tokens) { return (tokens + chunk - 1) / chunk; };
    // The first user draws while the others' prompts, then the long one, are computed.
    const std::int64_t user = kUserPrompt + steps(options.users * kUserPrompt) +
                              static_cast<std::int64_t>(kQuietSteps) + 1 + steps(options.prompt) + 2;
    check_context(model, user);
    EngineOptions engine;
    engine.kv_blocks =
        options.users * PagedKvCache::blocks_of(user) + PagedKvCache::blocks_of(options.prompt + 1);
    engine.kv_type = options.kv_type;
    engine.share_prefixes = false;
    engine.max_running = static_cast<std::int32_t>(options.users + 1);
    engine.step_tokens = chunk + options.users;
    return engine;
  }

  std::vector<TokenId> tokens(std::int64_t count, std::uint32_t seed) const {
    return random_tokens(count, model_.model().config().vocab_size, seed);
  }

  // Between neighbouring tokens of some users, from the token of that number on.
  std::vector<double> gaps(std::size_t first, std::size_t last, std::size_t begin) const {
    std::vector<double> all;
    for (std::size_t user = first; user <= last; ++user) {
      const auto& times = requests_.times(user);
      for (std::size_t i = begin; i < times.size(); ++i) {
        all.push_back(seconds_between(times[i - 1], times[i]));
      }
    }
    return all;
  }

  const LanguageModel& model_;
  const ChunkStudyOptions& options_;
  TimedRequests requests_;
};

}  // namespace

std::vector<ChunkRow> study_chunk(const LanguageModel& model, Executor& executor,
                                  const ChunkStudyOptions& options, const StudyProgress& progress) {
  check_options(model, options);
  const std::int64_t runs = options.repetitions + 1;  // the first warms up
  const std::int64_t all = std::ssize(options.chunks) * runs;
  std::int64_t done = 0;
  std::vector<ChunkRow> rows;
  for (const std::int64_t chunk : options.chunks) {
    ChunkRuns chunk_runs(model, executor, options, chunk);
    std::vector<double> prefill, stall, decode;
    for (std::int64_t i = 0; i < runs; ++i) {
      if (progress) progress(done++, all);
      const Times times = chunk_runs.run();
      if (i == 0) continue;
      prefill.push_back(times.prefill);
      stall.push_back(times.stall);
      decode.push_back(times.decode);
    }
    rows.push_back({chunk, percentile(prefill, 0.5), percentile(stall, 0.5), percentile(decode, 0.5)});
  }
  return rows;
}

}  // namespace kvasir
