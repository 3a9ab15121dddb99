// Sequences that begin with the same tokens: blocks and time to first token, with and without sharing.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "engine/measure.h"
#include "engine/timed_requests.h"
#include "kvasir/error.h"
#include "kvasir/study.h"
#include "study/context.h"

namespace kvasir {
namespace {

constexpr std::int64_t kStepTokens = 512;  // of prompts

// What the others' prompts take at most.
std::int64_t most_steps(const SharingStudyOptions& options, std::int64_t sequences) {
  return (sequences * (options.prompt + options.own) + kStepTokens - 1) / kStepTokens + 1;
}

void check_options(const LanguageModel& model, const SharingStudyOptions& options) {
  check_list("sequences", options.sequences, 2);
  check_list("prompt", std::array{options.prompt}, 1);
  check_list("own", std::array{options.own}, 1);
  const std::int64_t most = std::ranges::max(options.sequences);
  if (most > model.model().config().vocab_size) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("sequences is {}, but the vocabulary has {} tokens to tell them apart", most,
                            model.model().config().vocab_size));
  }
  check_context(model, options.prompt + options.own + most_steps(options, most) + 1);
}

EngineOptions engine_options(const SharingStudyOptions& options, std::int64_t sequences, bool share) {
  const std::int64_t positions = options.prompt + options.own + most_steps(options, sequences) + 1;
  EngineOptions engine;
  engine.kv_blocks = sequences * PagedKvCache::blocks_of(positions);
  engine.kv_type = options.kv_type;
  engine.share_prefixes = share;
  engine.max_running = static_cast<std::int32_t>(sequences);
  engine.step_tokens = kStepTokens + sequences;
  return engine;
}

// The common tokens, then some of its own, the first of which nobody else has.
std::vector<TokenId> prompt_of(const LanguageModel& model, const SharingStudyOptions& options,
                               std::int64_t sequence) {
  const std::int32_t vocab_size = model.model().config().vocab_size;
  std::vector<TokenId> tokens = random_tokens(options.prompt, vocab_size);
  const std::vector<TokenId> own =
      random_tokens(options.own, vocab_size, static_cast<std::uint32_t>(sequence + 2));
  tokens.insert(tokens.end(), own.begin(), own.end());
  tokens[static_cast<std::size_t>(options.prompt)] = static_cast<TokenId>(sequence);
  return tokens;
}

struct Outcome {
  std::int64_t blocks;
  double median, most;  // time to first token of the others
};

// Every sequence's block table when its prompt has been computed. All of them stay, so that no block is given
// to another meanwhile.
class BlockCount {
 public:
  explicit BlockCount(Engine& engine) {
    engine.set_observer([this](const StepReport& report) {
      for (const StepReport::Part& part : report.parts) {
        if (part.logits > 0 && counted_.insert(part.request).second) {
          blocks_.insert(part.blocks.begin(), part.blocks.end());
        }
      }
    });
  }
  std::int64_t blocks() const { return std::ssize(blocks_); }

 private:
  std::set<RequestId> counted_;
  std::set<std::int32_t> blocks_;
};

Outcome run(const LanguageModel& model, Executor& executor, const SharingStudyOptions& options,
            std::int64_t sequences, bool share) {
  TimedRequests requests(model, executor, engine_options(options, sequences, share));
  BlockCount count(requests.engine());
  requests.submit(prompt_of(model, options, 0), std::nullopt);
  requests.await_tokens(0, 1);

  const auto arrival = TimedRequests::Clock::now();
  for (std::int64_t i = 1; i < sequences; ++i) requests.submit(prompt_of(model, options, i), std::nullopt);
  const auto last = static_cast<std::size_t>(sequences - 1);
  requests.await_tokens(last, 1);
  std::vector<double> first_tokens;
  for (std::size_t i = 1; i <= last; ++i) {
    first_tokens.push_back(seconds_between(arrival, requests.times(i).front()));
  }
  const Outcome result{count.blocks(), percentile(first_tokens, 0.5), percentile(first_tokens, 1.0)};
  requests.cancel_all();
  return result;
}

void check_blocks(std::int64_t counted, std::int64_t expected, const char* how) {
  if (counted == expected) return;
  throw Error(ErrorKind::kRuntime, fmt::format("{} blocks are in use {} sharing, but {} were expected: a bug "
                                               "of the cache",
                                               counted, how, expected));
}

}  // namespace

std::int64_t shared_blocks_expected(std::int64_t sequences, std::int64_t prompt, std::int64_t own) {
  return sequences * PagedKvCache::blocks_of(prompt + own) -
         (sequences - 1) * (prompt / PagedKvCache::kBlockPositions);
}

std::vector<SharingRow> study_sharing(const LanguageModel& model, Executor& executor,
                                      const SharingStudyOptions& options, const StudyProgress& progress) {
  check_options(model, options);
  const std::size_t block_bytes = PagedKvCache::block_bytes(model.model().config(), options.kv_type);
  run(model, executor, options, options.sequences.front(), false);  // warms up
  std::vector<SharingRow> rows;
  for (const std::int64_t sequences : options.sequences) {
    if (progress) progress(std::ssize(rows), std::ssize(options.sequences));
    const Outcome shared = run(model, executor, options, sequences, true);
    const Outcome unshared = run(model, executor, options, sequences, false);
    check_blocks(shared.blocks, shared_blocks_expected(sequences, options.prompt, options.own), "with");
    check_blocks(unshared.blocks, sequences * PagedKvCache::blocks_of(options.prompt + options.own),
                 "without");
    rows.push_back({sequences, shared.blocks, unshared.blocks,
                    static_cast<std::size_t>(unshared.blocks - shared.blocks) * block_bytes, shared.median,
                    shared.most, unshared.median, unshared.most});
  }
  return rows;
}

}  // namespace kvasir
