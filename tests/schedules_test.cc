// The engine: whatever runs beside a request, and however it is scheduled, its tokens, logits, text and
// counts are those of a run by itself.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/sha256.h"
#include "kvasir/engine.h"
#include "kvasir/error.h"
#include "kvasir/sequence_runner.h"
#include "toy_model.h"

namespace kvasir {
namespace {

using Tokens = std::vector<TokenId>;
using ChoiceKey = std::pair<RequestId, std::int32_t>;

Executor& executor(int threads) {
  static Executor one(1), two(2);
  return threads == 1 ? one : two;
}

// A context of 256 positions, 16 blocks.
const LanguageModel& toy_model() {
  static const LanguageModel model = [] {
    testing::ToyFile file = testing::toy_file(TensorType::kQ8_0);
    file.numbers["llama.context_length"] = 256;
    const std::string path = file.write();
    LanguageModel loaded = LanguageModel::load(path, Activations::kDefault, executor(1));
    std::remove(path.c_str());
    return loaded;
  }();
  return model;
}

Tokens random_tokens(std::mt19937& random, std::size_t count) {
  Tokens tokens(count);
  for (TokenId& id : tokens) id = static_cast<TokenId>(random() % 26);
  return tokens;
}

EngineRequest request(Tokens prompt, std::int64_t max_tokens, double temperature = 0.0) {
  EngineRequest wanted;
  wanted.prompt = std::move(prompt);
  wanted.max_tokens = max_tokens;
  wanted.sampling.temperature = temperature;
  wanted.ignore_eos = true;
  return wanted;
}

// What a request gives by itself: a contiguous cache, one sequence, one thread.
GenerateResult alone(const EngineRequest& wanted, std::int32_t choice = 0) {
  GenerateRequest one;
  static_cast<CompletionRequest&>(one) = wanted;
  one.sampling.choice += static_cast<std::uint32_t>(choice);
  return generate(toy_model(), executor(1), one);
}

// The logits that its tokens were drawn from, by one run over all of them without any cache from before.
std::vector<float> logits_alone(const EngineRequest& wanted, const Tokens& output) {
  Tokens tokens = wanted.prompt;
  tokens.insert(tokens.end(), output.begin(), output.end() - 1);
  SequenceRunner runner(toy_model().model(), executor(1), 1, std::ssize(tokens), KvType::kF16, {});
  const auto logits = runner.append(tokens, std::ssize(output));
  return {logits.begin(), logits.end()};
}

// An engine that remembers everything it was told.
class Watched {
 public:
  explicit Watched(EngineOptions options = {}, int threads = 1)
      : engine_(toy_model(), executor(threads), small(options)) {
    engine_.set_observer([this](const StepReport& report) { watch(report); });
  }

  RequestId submit(EngineRequest wanted) {
    const std::size_t number = submitted_;
    wanted.on_token = [this, number](std::int32_t choice, const GeneratedToken& token) {
      streamed_[{number, choice}].first.push_back(token.id);
      streamed_[{number, choice}].second += token.text;
    };
    wanted.on_end = [this, number](std::int32_t choice, const ChoiceResult& result, const Error* error) {
      EXPECT_TRUE(results_.emplace(std::pair(number, choice), result).second) << "ended twice";
      if (error != nullptr) errors_[{number, choice}] = error->what();
    };
    const bool speculates = wanted.speculation != Speculation::kNone;
    const RequestId id = engine_.submit(std::move(wanted));
    if (speculates) speculates_.insert(id);
    number_of_[id] = number;
    ++submitted_;
    return id;
  }
  void run() {
    while (engine_.step()) {
    }
    expect_idle();
  }
  void expect_idle() {
    const EngineMetrics metrics = engine_.metrics();
    EXPECT_EQ(metrics.running, 0);
    EXPECT_EQ(metrics.waiting, 0);
    EXPECT_EQ(metrics.cache.referenced, 0);
    EXPECT_EQ(metrics.cache.open_sequences, 0);
    EXPECT_EQ(metrics.cache.free + metrics.cache.cached, metrics.cache.blocks);
  }

  Engine& engine() { return engine_; }
  // By the order of submission, counted from 0.
  const ChoiceResult& result(std::size_t number, std::int32_t choice = 0) {
    return results_.at({number, choice});
  }
  bool ended(std::size_t number, std::int32_t choice = 0) { return results_.contains({number, choice}); }
  const std::string& error(std::size_t number, std::int32_t choice = 0) { return errors_[{number, choice}]; }
  // The logits that its tokens were drawn from.
  std::vector<float> logits(std::size_t number, std::int32_t choice, const EngineRequest& wanted) {
    std::vector<float> all;
    for (std::int64_t i = 0; i < std::ssize(result(number, choice).tokens); ++i) {
      const std::int64_t position = std::ssize(wanted.prompt) + i - 1;
      auto found = rows_.find({number, choice, position});
      if (found == rows_.end() && i == 0) found = rows_.find({number, 0, position});  // shared with the first
      if (found == rows_.end()) return {};
      all.insert(all.end(), found->second.begin(), found->second.end());
    }
    return all;
  }
  // Everything of it, beside what it gives by itself.
  void expect_as_alone(std::size_t number, const EngineRequest& wanted) {
    for (std::int32_t choice = 0; choice < wanted.n; ++choice) {
      SCOPED_TRACE(::testing::Message() << "request " << number << " choice " << choice);
      const ChoiceResult& got = result(number, choice);
      const GenerateResult expected = alone(wanted, choice);
      ASSERT_EQ(got.tokens, expected.tokens);
      EXPECT_EQ(got.text, expected.text);
      EXPECT_EQ(got.finish_reason, expected.finish_reason);
      EXPECT_EQ(got.stop_reason, expected.stop_reason);
      ASSERT_EQ(got.logprobs.size(), expected.logprobs.size());
      for (std::size_t i = 0; i < got.logprobs.size(); ++i) {
        EXPECT_EQ(got.logprobs[i].chosen, expected.logprobs[i].chosen);
        EXPECT_EQ(got.logprobs[i].top, expected.logprobs[i].top);
      }
      EXPECT_EQ((streamed_[{number, choice}].first), expected.tokens);
      EXPECT_EQ((streamed_[{number, choice}].second), expected.text);
      if (!expected.tokens.empty()) {
        EXPECT_EQ(logits(number, choice, wanted), logits_alone(wanted, expected.tokens));
      }
      EXPECT_EQ(error(number, choice), "");
    }
  }

  std::vector<StepReport> reports;  // without their spans

 private:
  static EngineOptions small(EngineOptions options) {
    if (options.kv_blocks == 0) options.kv_blocks = 64;
    return options;
  }

  // The tables of all that run tell the pool's counts.
  static void expect_tables(const StepReport& report) {
    std::map<std::int32_t, std::int32_t> users, told;
    for (const auto* list : {&report.parts, &report.idle}) {
      for (const StepReport::Part& part : *list) {
        EXPECT_EQ(part.tokens == 0, list == &report.idle);
        ASSERT_EQ(part.references.size(), part.blocks.size());
        for (std::size_t i = 0; i < part.blocks.size(); ++i) {
          ++users[part.blocks[i]];
          told[part.blocks[i]] = part.references[i];
        }
      }
    }
    EXPECT_EQ(told, users);
    EXPECT_EQ(std::ssize(users), report.usage.referenced);
    EXPECT_EQ(report.usage.free + report.usage.cached + report.usage.referenced, report.usage.blocks);
  }

  void watch(const StepReport& report) {
    report.cache->check();
    std::size_t row = 0;
    std::set<ChoiceKey> seen;
    for (const StepReport::Part& part : report.parts) {
      EXPECT_TRUE(seen.insert({part.request, part.choice}).second) << "twice in a step";
      for (std::int64_t i = 0; i < part.logits; ++i, ++row) {
        const auto logits = report.logits.subspan(row * testing::kVocab, testing::kVocab);
        const std::int64_t position = part.first_position + part.tokens - part.logits + i;
        const auto key = std::tuple(number_of_.at(part.request), part.choice, position);
        // After a wrong guess they are computed again.
        const auto [place, added] =
            rows_.insert_or_assign(key, std::vector<float>(logits.begin(), logits.end()));
        EXPECT_TRUE(added || speculates_.contains(part.request)) << "a position drawn twice";
      }
    }
    expect_tables(report);
    reports.push_back(report);
    reports.back().logits = {};
    reports.back().cache = nullptr;
  }

  Engine engine_;
  std::size_t submitted_ = 0;
  std::map<RequestId, std::size_t> number_of_;
  std::set<RequestId> speculates_;
  std::map<std::pair<std::size_t, std::int32_t>, ChoiceResult> results_;
  std::map<std::pair<std::size_t, std::int32_t>, std::string> errors_;
  std::map<std::pair<std::size_t, std::int32_t>, std::pair<Tokens, std::string>> streamed_;
  std::map<std::tuple<std::size_t, std::int32_t, std::int64_t>, std::vector<float>> rows_;
};

std::string message_of(const std::function<void()>& call, ErrorKind kind) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  return "nothing was thrown";
}

// ---- One request

TEST(Engine, OneRequestGivesWhatGenerateGives) {
  std::mt19937 random(1);
  EngineRequest wanted = request(random_tokens(random, 40), 20, 0.9);
  wanted.logprobs = 3;
  Watched watched;
  watched.submit(wanted);
  watched.run();
  watched.expect_as_alone(0, wanted);
  EXPECT_FALSE(watched.engine().step());
}

TEST(Engine, NoTokensWantedAreNone) {
  for (const std::int32_t n : {1, 3}) {
    EngineRequest wanted = request({1, 2, 3}, 0);
    wanted.n = n;
    Watched watched;
    watched.submit(wanted);
    watched.run();
    for (std::int32_t choice = 0; choice < n; ++choice) {
      EXPECT_TRUE(watched.result(0, choice).tokens.empty());
      EXPECT_EQ(watched.result(0, choice).finish_reason, FinishReason::kLength);
    }
  }
}

// S01
TEST(Engine, APromptThatIsCachedAsAWholeIsComputedFromItsLastBlock) {
  for (const std::size_t length : {1U, 15U, 16U, 17U, 31U, 32U, 33U, 48U}) {
    std::mt19937 random(2);
    const EngineRequest wanted = request(random_tokens(random, length), 5);
    Watched watched;
    watched.submit(wanted);
    watched.run();
    watched.submit(wanted);
    watched.run();
    for (const std::size_t number : {0U, 1U}) watched.expect_as_alone(number, wanted);
    EXPECT_EQ(watched.result(0).cached_tokens, 0);
    EXPECT_EQ(watched.result(1).cached_tokens, static_cast<std::int64_t>((length - 1) / 16 * 16));
  }
}

// S02
TEST(Engine, ARecycledBlockIsNotFoundUnderItsOldContents) {
  std::mt19937 random(3);
  const Tokens x = random_tokens(random, 46), y = random_tokens(random, 94);
  Watched watched({.kv_blocks = 6});
  Tokens other_end = x, other_start = x;
  other_end.back() = (x.back() + 1) % 26;
  other_start.front() = (x.front() + 1) % 26;
  const std::vector<EngineRequest> all = {request(x, 2), request(y, 2), request(x, 2), request(other_end, 2),
                                          request(other_start, 2)};
  for (const EngineRequest& wanted : all) {
    watched.submit(wanted);
    watched.run();
  }
  for (std::size_t i = 0; i < all.size(); ++i) watched.expect_as_alone(i, all[i]);
  EXPECT_EQ(watched.result(2).cached_tokens, 0);
  EXPECT_EQ(watched.result(3).cached_tokens, 32);
  EXPECT_EQ(watched.result(4).cached_tokens, 0);
}

// S03
TEST(Engine, TheSameListTwiceAndWithoutSharingGivesTheSameAnswers) {
  std::mt19937 random(4);
  std::vector<EngineRequest> list;
  for (int i = 0; i < 16; ++i) list.push_back(request(random_tokens(random, 100), 16));
  const EngineRequest repeated = request(random_tokens(random, 180), 16);
  for (int i = 0; i < 3; ++i) list.push_back(repeated);
  for (const bool share : {true, false}) {
    Watched watched({.kv_blocks = 300, .share_prefixes = share});
    for (int round = 0; round < 2; ++round) {
      for (const EngineRequest& wanted : list) watched.submit(wanted);
      watched.run();
    }
    for (std::size_t i = 0; i < 2 * list.size(); ++i) watched.expect_as_alone(i, list[i % list.size()]);
    EXPECT_EQ(watched.engine().metrics().cached_tokens > 0, share);
  }
}

// S05
TEST(Engine, NeighboursInAnyOrderAndAnyTimeOfArrivalChangeNothing) {
  std::mt19937 random(5);
  const Tokens before = random_tokens(random, 12), after = random_tokens(random, 9);
  std::vector<EngineRequest> all;
  for (const std::size_t length : {1U, 2U, 2U, 3U, 5U}) {  // the code words
    Tokens prompt = before;
    for (const TokenId id : random_tokens(random, length)) prompt.push_back(id);
    prompt.insert(prompt.end(), after.begin(), after.end());
    all.push_back(request(prompt, static_cast<std::int64_t>(4 + length)));
  }
  std::vector<std::size_t> order(all.size());
  std::iota(order.begin(), order.end(), 0U);
  int late = 0;
  do {
    Watched watched({.max_running = 1 + static_cast<std::int32_t>(order[0])});
    for (const std::size_t i : order) {
      watched.submit(all[i]);
      for (int step = 0; step < late % 8; ++step) watched.engine().step();
    }
    watched.run();
    for (std::size_t i = 0; i < order.size(); ++i) watched.expect_as_alone(i, all[order[i]]);
    ++late;
    ASSERT_FALSE(::testing::Test::HasFailure());
  } while (std::next_permutation(order.begin(), order.end()));
  EXPECT_EQ(late, 120);
}

// S06
TEST(Engine, ASeedIsKeptWhateverTheNeighboursSeedsAndChoicesDifferUnderOneSeed) {
  std::mt19937 random(6);
  const Tokens prompt = random_tokens(random, 37);
  EngineRequest seeded = request(prompt, 12, 1.0), other = request(prompt, 12, 1.0), several = seeded;
  seeded.sampling.seed = several.sampling.seed = 42;
  other.sampling.seed = 43;
  several.n = 4;
  Watched watched;
  for (const EngineRequest* wanted : {&seeded, &other, &several, &seeded}) watched.submit(*wanted);
  watched.run();
  watched.expect_as_alone(0, seeded);
  watched.expect_as_alone(1, other);
  watched.expect_as_alone(2, several);
  watched.expect_as_alone(3, seeded);
  EXPECT_EQ(watched.result(2, 0).tokens, watched.result(0).tokens);
  std::set<Tokens> different;
  for (std::int32_t choice = 0; choice < 4; ++choice) different.insert(watched.result(2, choice).tokens);
  EXPECT_EQ(different.size(), 4U);
}

// ---- Sharing

TEST(Engine, ChoicesShareTheirPrompt) {
  std::mt19937 random(7);
  EngineRequest wanted = request(random_tokens(random, 70), 3, 1.0);
  wanted.n = 8;
  Watched watched({.share_prefixes = false});
  watched.submit(wanted);
  watched.engine().step();  // the prompt and the first token of each
  EXPECT_EQ(watched.engine().metrics().cache.referenced, 5);
  EXPECT_EQ(watched.engine().metrics().cache.held, 40);
  EXPECT_EQ(watched.engine().metrics().computed_tokens, 70);
  watched.engine().step();
  EXPECT_EQ(watched.engine().metrics().cache.referenced, 4 + 8);  // each has its own end
  EXPECT_EQ(watched.engine().metrics().cache.copies, 7);
  watched.run();
  watched.expect_as_alone(0, wanted);
}

TEST(Engine, ChoicesThatFindNoPlaceRunLater) {
  std::mt19937 random(8);
  EngineRequest wanted = request(random_tokens(random, 35), 9, 1.0);
  wanted.n = 5;
  Watched watched({.max_running = 2});
  watched.submit(wanted);
  watched.run();
  watched.expect_as_alone(0, wanted);
}

TEST(Engine, SaltsKeepRequestsApart) {
  std::mt19937 random(9);
  EngineRequest wanted = request(random_tokens(random, 40), 2);
  Watched watched;
  for (const char* salt : {"one", "two", "one"}) {
    wanted.cache_salt = salt;
    watched.submit(wanted);
    watched.run();
  }
  EXPECT_EQ(watched.result(1).cached_tokens, 0);
  EXPECT_EQ(watched.result(2).cached_tokens, 32);
}

// ---- Scheduling

TEST(Engine, ALongPromptDelaysNobody) {
  std::mt19937 random(10);
  const EngineRequest first = request(random_tokens(random, 5), 40),
                      second = request(random_tokens(random, 7), 40);
  const EngineRequest long_one = request(random_tokens(random, 200), 4);
  Watched watched({.max_running = 8, .step_tokens = 16});
  watched.submit(first);
  watched.submit(second);
  watched.engine().step();
  watched.submit(long_one);
  watched.run();
  int with_prompt = 0;
  for (const StepReport& report : watched.reports) {
    std::int64_t tokens = 0, of_prompt = 0;
    for (const StepReport::Part& part : report.parts) {
      tokens += part.tokens;
      if (part.request == 3) of_prompt += part.tokens;
    }
    EXPECT_LE(tokens, 16);
    if (of_prompt <= 1) continue;
    ++with_prompt;
    EXPECT_EQ(report.parts.size(), 3U) << "the others go on";
    EXPECT_LE(of_prompt, 14);
  }
  EXPECT_GE(with_prompt, 200 / 14);
  watched.expect_as_alone(0, first);
  watched.expect_as_alone(1, second);
  watched.expect_as_alone(2, long_one);
}

TEST(Engine, PriorityGoesBeforeArrival) {
  std::mt19937 random(11);
  Watched watched({.max_running = 1});
  std::vector<RequestId> admitted;
  std::vector<EngineRequest> all;
  for (const std::int32_t priority : {0, 5, 1, 1, -2}) {
    all.push_back(request(random_tokens(random, 5), 3));
    all.back().priority = priority;
    watched.submit(all.back());
  }
  watched.run();
  for (const StepReport& report : watched.reports) {
    for (const StepReport::Admitted& one : report.admitted) admitted.push_back(one.request);
  }
  EXPECT_EQ(admitted, (std::vector<RequestId>{5, 1, 3, 4, 2}));
}

// S20
TEST(Engine, PreemptionLosesNothing) {
  std::mt19937 random(12);
  for (const bool share : {true, false}) {
    for (const double presence : {0.0, 0.5}) {
      Watched watched({.kv_blocks = 8, .share_prefixes = share});
      std::vector<EngineRequest> all;
      for (int i = 0; i < 4; ++i) {
        all.push_back(request(random_tokens(random, 20), 40));
        all.back().sampling.presence_penalty = presence;
        watched.submit(all.back());
      }
      watched.run();
      EXPECT_GE(watched.engine().metrics().preemptions, 1);
      for (std::size_t i = 0; i < all.size(); ++i) {
        watched.expect_as_alone(i, all[i]);
        EXPECT_EQ(watched.result(i).tokens.size(), 40U);
      }
      EXPECT_EQ(watched.result(0).preemptions, 0) << "the first to come is never preempted";
    }
  }
}

TEST(Engine, ARequestThatCanNeverFitIsRefusedAtOnceWithBothNumbers) {
  Watched watched({.kv_blocks = 3});
  const auto submit = [&](std::size_t length) { watched.submit(request(Tokens(length, 1), 100)); };
  const std::string message = message_of([&] { submit(48); }, ErrorKind::kCapacity);
  EXPECT_NE(message.find("48 tokens"), std::string::npos) << message;
  EXPECT_NE(message.find("holds 48"), std::string::npos) << message;
  submit(47);
  submit(20);
  watched.run();
  EXPECT_EQ(watched.result(0).tokens.size(), 1U);
  EXPECT_EQ(watched.result(1).tokens.size(), 28U);
  EXPECT_EQ(watched.result(1).finish_reason, FinishReason::kLength);
}

TEST(Engine, WrongRequestsAreRefusedAtOnce) {
  Watched watched;
  EngineRequest bad = request({1, 2}, 3);
  bad.n = 0;
  EXPECT_NE(message_of([&] { watched.submit(bad); }, ErrorKind::kInvalidArgument).find("n is 0"),
            std::string::npos);
  bad = request({1, 99}, 3);
  EXPECT_NE(message_of([&] { watched.submit(bad); }, ErrorKind::kInvalidArgument).find("token id 99"),
            std::string::npos);
  bad = request({}, 3);
  EXPECT_NE(message_of([&] { watched.submit(bad); }, ErrorKind::kInvalidArgument).find("no tokens"),
            std::string::npos);
  bad = request({1}, 3, -1.0);
  EXPECT_NE(message_of([&] { watched.submit(bad); }, ErrorKind::kInvalidArgument).find("temperature"),
            std::string::npos);
  EXPECT_FALSE(watched.engine().step());
}

TEST(Engine, WrongOptionsAreRefused) {
  const auto message = [](EngineOptions options, ErrorKind kind = ErrorKind::kInvalidArgument) {
    return message_of([&] { Engine(toy_model(), executor(1), options); }, kind);
  };
  EXPECT_NE(message({.max_running = 0}).find("max_running is 0"), std::string::npos);
  EXPECT_NE(message({.max_waiting = 0}).find("max_waiting is 0"), std::string::npos);
  EXPECT_NE(message({.max_running = 9, .step_tokens = 8}).find("step_tokens is 8"), std::string::npos);
  EXPECT_NE(message({.kv_blocks = -1}).find("kv_blocks is -1"), std::string::npos);
  EXPECT_NE(message({.kv_bytes = 1000}, ErrorKind::kCapacity).find("kv_bytes is 1000"), std::string::npos);
}

TEST(Engine, NoMoreWaitThanMay) {
  Watched watched({.max_running = 1, .max_waiting = 2});
  const EngineRequest wanted = request({1, 2, 3}, 4);
  watched.submit(wanted);
  watched.submit(wanted);
  EXPECT_NE(message_of([&] { watched.submit(wanted); }, ErrorKind::kBusy).find("2 requests wait"),
            std::string::npos);
  watched.engine().step();  // one of them runs now
  watched.submit(wanted);
  EXPECT_NE(message_of([&] { watched.submit(wanted); }, ErrorKind::kBusy).find("2 requests wait"),
            std::string::npos);
  watched.run();
  for (int i = 0; i < 2; ++i) watched.submit(wanted);
  watched.run();
}

// ---- Speculation

// Prompts that repeat themselves, and answers that do.
EngineRequest repetitive(std::mt19937& random, std::int64_t max_tokens, double temperature) {
  const Tokens part = random_tokens(random, 3 + random() % 6);
  Tokens prompt;
  while (prompt.size() < 40) prompt.insert(prompt.end(), part.begin(), part.end());
  EngineRequest wanted = request(prompt, max_tokens, temperature);
  wanted.speculation = Speculation::kNgram;
  return wanted;
}

// S19
TEST(Engine, GuessesChangeNothingButTheTime) {
  std::mt19937 random(17);
  std::int64_t drafted = 0, accepted = 0;
  for (int i = 0; i < 60; ++i) {
    EngineRequest wanted = repetitive(random, 1 + random() % 64, i % 2 == 0 ? 0.0 : 0.8);
    wanted.sampling.seed = random();
    wanted.logprobs = 2;
    if (i % 3 == 0) wanted.sampling.presence_penalty = 0.3;
    if (i % 4 == 0) wanted.sampling.logit_bias = {{3, 2.0}, {4, -1.0}};
    if (i % 5 == 0) wanted.stop = {"ab", "x"};
    if (i % 6 == 0) wanted.ignore_eos = false;
    if (i % 7 == 0) wanted.n = 3;
    Watched watched({.kv_blocks = 20 + i});
    watched.submit(wanted);
    watched.submit(repetitive(random, 30, 0.0));
    watched.run();
    watched.expect_as_alone(0, wanted);
    drafted += watched.engine().metrics().drafted;
    accepted += watched.engine().metrics().accepted;
    ASSERT_FALSE(::testing::Test::HasFailure()) << "request " << i;
  }
  EXPECT_GT(drafted, 500);
  EXPECT_GT(accepted, 100);
  EXPECT_LT(accepted, drafted);
}

TEST(Engine, RightGuessesSaveSteps) {
  // With a bias that leaves two tokens, a greedy answer soon repeats itself.
  EngineRequest wanted = request(Tokens(20, 3), 100);
  for (TokenId id = 0; id < 32; ++id) wanted.sampling.logit_bias.emplace_back(id, id < 1 ? 100.0 : 0.0);
  Watched plain, guessing;
  plain.submit(wanted);
  plain.run();
  wanted.speculation = Speculation::kNgram;
  guessing.submit(wanted);
  guessing.run();
  guessing.expect_as_alone(0, wanted);
  EXPECT_EQ(plain.engine().metrics().steps, 100);
  EXPECT_LT(guessing.engine().metrics().steps, 20);
  EXPECT_GT(guessing.result(0).accepted, 80);
}

TEST(Engine, GuessesTakeNothingFromOthers) {
  std::mt19937 random(18);
  Watched watched({.kv_blocks = 40, .max_running = 4, .step_tokens = 6});
  std::vector<EngineRequest> all;
  for (int i = 0; i < 4; ++i) {
    all.push_back(repetitive(random, 30, 0.0));
    watched.submit(all.back());
  }
  watched.run();
  for (const StepReport& report : watched.reports) {
    std::int64_t tokens = 0;
    for (const StepReport::Part& part : report.parts) tokens += part.tokens;
    EXPECT_LE(tokens, 6);
  }
  for (std::size_t i = 0; i < 4; ++i) watched.expect_as_alone(i, all[i]);
  EXPECT_EQ(watched.engine().metrics().preemptions, 0);
}

// ---- Cancellation, errors

// S18
TEST(Engine, CancellationTakesEffectInOneStepAndTouchesNobodyElse) {
  std::mt19937 random(13);
  const EngineRequest stays = request(random_tokens(random, 30), 30);
  Watched watched({.kv_blocks = 40, .max_running = 3, .step_tokens = 20});
  watched.submit(stays);
  const RequestId decoding = watched.submit(request(random_tokens(random, 5), 50));
  for (int i = 0; i < 4; ++i) watched.engine().step();
  const RequestId in_prompt = watched.submit(request(random_tokens(random, 100), 50));
  const RequestId queued = watched.submit(request(random_tokens(random, 5), 50));
  watched.engine().step();
  for (const RequestId id : {decoding, in_prompt, queued}) watched.engine().cancel(id);
  const RequestId unseen = watched.submit(request(random_tokens(random, 5), 50));
  watched.engine().cancel(unseen);
  watched.engine().cancel(12345);
  watched.engine().step();
  EXPECT_EQ(watched.reports.back().parts.size(), 1U);
  EXPECT_EQ(watched.engine().metrics().running, 1);
  EXPECT_EQ(watched.engine().metrics().waiting, 0);
  for (const std::size_t number : {1U, 2U, 3U, 4U}) {
    EXPECT_EQ(watched.result(number).finish_reason, FinishReason::kCancelled);
  }
  watched.run();
  watched.expect_as_alone(0, stays);
  watched.engine().cancel(1);  // over already
  EXPECT_FALSE(watched.engine().step());
}

TEST(Engine, ManyRoundsOfCancellationsLeaveNothingBehind) {
  std::mt19937 random(14);
  Watched watched({.kv_blocks = 24, .max_running = 2, .step_tokens = 16});
  for (int round = 0; round < 200; ++round) {
    EngineRequest wanted = request(random_tokens(random, 1 + random() % 60), 20, 1.0);
    wanted.n = 1 + static_cast<std::int32_t>(random() % 3);
    const RequestId id = watched.submit(wanted);
    for (std::uint64_t steps = random() % 8; steps > 0; --steps) watched.engine().step();
    watched.engine().cancel(id);
    const EngineMetrics metrics = watched.engine().metrics();
    ASSERT_LE(metrics.cache.referenced, metrics.cache.blocks);
  }
  watched.run();
  for (std::size_t number = 0; number < 200; ++number) EXPECT_TRUE(watched.ended(number)) << number;
}

TEST(Engine, CallbacksMaySubmitAndCancel) {
  Engine engine(toy_model(), executor(1), {.kv_blocks = 32});
  int ended = 0;
  RequestId second = 0;
  EngineRequest one = request({1, 2, 3}, 5), two = request({4, 5}, 100);
  two.on_token = [&](std::int32_t /*choice*/, const GeneratedToken& /*token*/) { engine.cancel(second); };
  two.on_end = [&](std::int32_t /*choice*/, const ChoiceResult& result, const Error* /*error*/) {
    EXPECT_EQ(result.finish_reason, FinishReason::kCancelled);
    ++ended;
  };
  one.on_end = [&](std::int32_t /*choice*/, const ChoiceResult& /*result*/, const Error* /*error*/) {
    second = engine.submit(two);
    ++ended;
  };
  engine.submit(one);
  while (engine.step()) {
  }
  EXPECT_EQ(ended, 2);
}

TEST(Engine, LogitsThatAreNotNumbersEndOneRequestWithAnErrorAndNoOther) {
  testing::ToyFile file = testing::toy_file();
  const float nan = std::nanf("");  // in the embedding of token 25 alone
  std::memcpy(file.tensors["token_embd.weight"].data.data() + 25 * testing::kWidth * sizeof nan, &nan,
              sizeof nan);
  const std::string path = file.write();
  const LanguageModel model = LanguageModel::load(path, Activations::kDefault, executor(1));
  std::remove(path.c_str());

  Engine engine(model, executor(1), {.kv_blocks = 16});
  std::vector<std::string> errors(3);
  std::vector<Tokens> tokens(3);
  const std::vector<Tokens> prompts = {{1, 2, 3}, {1, 25, 3}, {1, 2, 3}};
  for (std::size_t i = 0; i < 3; ++i) {
    EngineRequest wanted = request(prompts[i], 4);
    for (TokenId id = 24; id < 32; ++id) wanted.sampling.logit_bias.emplace_back(id, -100.0);
    wanted.on_end = [&, i](std::int32_t /*choice*/, const ChoiceResult& result, const Error* error) {
      if (error != nullptr) errors[i] = error->what();
      tokens[i] = result.tokens;
    };
    engine.submit(wanted);
  }
  while (engine.step()) {
  }
  EXPECT_NE(errors[1].find("logits"), std::string::npos) << errors[1];
  EXPECT_TRUE(tokens[1].empty());
  for (const std::size_t i : {0U, 2U}) {
    EXPECT_EQ(errors[i], "");
    EXPECT_EQ(tokens[i].size(), 4U);
  }
  EXPECT_EQ(engine.metrics().cache.referenced, 0);
}

// ---- Threads

TEST(EngineThreads, ManyProducersAndOneThreadThatSteps) {
  Engine engine(toy_model(), executor(2), {.kv_blocks = 40, .max_running = 5, .max_waiting = 10'000});
  std::jthread stepper([&](const std::stop_token& stop) { engine.run(stop); });
  constexpr int kProducers = 4, kEach = 12;
  std::atomic<int> ended{0}, wrong{0};
  std::vector<std::pair<EngineRequest, GenerateResult>> kinds;
  std::mt19937 random(15);
  for (int kind = 0; kind < 6; ++kind) {
    const EngineRequest wanted =
        request(random_tokens(random, 3 + random() % 40), 6 + kind, kind % 2 == 0 ? 0.0 : 0.8);
    kinds.emplace_back(wanted, alone(wanted));
  }
  {
    std::vector<std::jthread> producers;
    for (int producer = 0; producer < kProducers; ++producer) {
      producers.emplace_back([&, producer] {
        for (int i = 0; i < kEach; ++i) {
          const auto& [wanted, expected] = kinds[static_cast<std::size_t>(producer + i) % kinds.size()];
          EngineRequest mine = wanted;
          const bool cancels = i % 5 == 4;
          mine.on_end = [&, cancels](std::int32_t /*choice*/, const ChoiceResult& result,
                                     const Error* error) {
            const bool right = error == nullptr && (cancels || result.tokens == expected.tokens);
            if (!right) ++wrong;
            ++ended;
          };
          const RequestId id = engine.submit(mine);
          if (cancels) engine.cancel(id);
        }
      });
    }
  }
  while (ended < kProducers * kEach) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  stepper.request_stop();
  stepper.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(engine.metrics().cache.referenced, 0);
}

TEST(EngineThreads, AnIdleEngineSleepsAndStops) {
  Engine engine(toy_model(), executor(1), {.kv_blocks = 8});
  std::jthread stepper([&](const std::stop_token& stop) { engine.run(stop); });
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_EQ(engine.metrics().steps, 0);
}

// ---- Random schedules

// Of the wanted ones' tokens, texts and logits.
class Outcome {
 public:
  void add(const GenerateResult& result, const std::vector<float>& logits) {
    sha256_.update(std::as_bytes(std::span(result.tokens)));
    sha256_.update(std::as_bytes(std::span(result.text)));
    sha256_.update(std::as_bytes(std::span(logits)));
  }
  std::string digest() { return sha256_.hex_digest(); }

 private:
  Sha256 sha256_;
};

std::vector<EngineRequest> wanted_requests() {
  std::mt19937 random(16);
  std::vector<EngineRequest> all;
  const Tokens system = random_tokens(random, 32);
  for (int i = 0; i < 8; ++i) {
    Tokens prompt = i % 2 == 0 ? system : Tokens{};
    for (const TokenId id : random_tokens(random, 1 + random() % 50)) prompt.push_back(id);
    EngineRequest wanted = request(prompt, 3 + random() % 25, i % 3 == 0 ? 0.0 : 0.9);
    wanted.sampling.seed = random();
    if (i == 1) wanted.sampling.top_p = 0.7;
    if (i == 2) wanted.sampling.presence_penalty = 0.5;
    if (i == 3) wanted.sampling.repetition_penalty = 1.3;
    if (i == 4) wanted.n = 3;
    if (i == 5) wanted.stop = {"qx", "e"};
    if (i == 6) wanted.ignore_eos = false;
    all.push_back(std::move(wanted));
  }
  return all;
}

TEST(RandomSchedules, GiveOneHash) {
  const std::vector<EngineRequest> wanted = wanted_requests();
  Outcome expected;
  for (const EngineRequest& one : wanted) {
    for (std::int32_t choice = 0; choice < one.n; ++choice) {
      const GenerateResult result = alone(one, choice);
      expected.add(result, logits_alone(one, result.tokens));
    }
  }
  const std::string hash = expected.digest();

#if defined(__SANITIZE_THREAD__)  // minutes for all of them
  constexpr std::uint32_t kSchedules = 100;
#else
  constexpr std::uint32_t kSchedules = 500;
#endif
  std::int64_t preemptions = 0, hits = 0, evictions = 0, accepted = 0, drafted = 0;
  for (std::uint32_t seed = 1; seed <= kSchedules; ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    std::mt19937 random(seed);
    const auto below = [&](std::uint32_t n) { return static_cast<std::int64_t>(random() % n); };
    EngineOptions options;
    options.max_running = static_cast<std::int32_t>(1 + below(12));
    options.step_tokens = options.max_running + below(below(2) == 0 ? 8 : 120);
    options.kv_blocks = 8 + below(below(2) == 0 ? 6 : 40);
    options.share_prefixes = below(4) != 0;
    options.shuffle_blocks = random();
    Watched watched(options, 1 + static_cast<int>(below(2)));

    // The wanted ones in any order, others between them that are cancelled at any time.
    std::vector<std::size_t> order(wanted.size());
    std::iota(order.begin(), order.end(), 0U);
    std::shuffle(order.begin(), order.end(), random);
    std::vector<std::size_t> number_of(wanted.size());
    std::vector<RequestId> to_cancel;
    std::size_t submitted = 0;
    for (const std::size_t i : order) {
      if (below(3) == 0) {
        Tokens prompt = wanted[static_cast<std::size_t>(below(8))].prompt;
        prompt.resize(1 + static_cast<std::size_t>(below(static_cast<std::uint32_t>(prompt.size()))));
        EngineRequest other = request(prompt, 1 + below(40), 1.0);
        other.n = static_cast<std::int32_t>(1 + below(3));
        to_cancel.push_back(watched.submit(other));
        ++submitted;
      }
      EngineRequest one = wanted[i];
      one.priority = static_cast<std::int32_t>(below(3));
      if (below(2) == 0) one.speculation = Speculation::kNgram;
      watched.submit(one);
      number_of[i] = submitted++;
      for (std::int64_t steps = below(3) == 0 ? below(12) : 0; steps > 0; --steps) {
        watched.engine().step();
        if (!to_cancel.empty() && below(6) == 0) {
          watched.engine().cancel(to_cancel.back());
          to_cancel.pop_back();
        }
      }
    }
    watched.run();
    Outcome outcome;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      for (std::int32_t choice = 0; choice < wanted[i].n; ++choice) {
        outcome.add(watched.result(number_of[i], choice), watched.logits(number_of[i], choice, wanted[i]));
      }
    }
    ASSERT_EQ(outcome.digest(), hash);
    ASSERT_FALSE(::testing::Test::HasFailure());
    const EngineMetrics metrics = watched.engine().metrics();
    preemptions += metrics.preemptions;
    hits += metrics.cached_tokens;
    evictions += metrics.cache.evictions;
    accepted += metrics.accepted;
    drafted += metrics.drafted;
  }
  // The schedules are what they are meant to be.
  EXPECT_GT(preemptions, kSchedules);
  EXPECT_GT(hits, kSchedules * 16);
  EXPECT_GT(evictions, kSchedules);
  EXPECT_GT(accepted, kSchedules);
  EXPECT_GT(drafted - accepted, kSchedules);
}

}  // namespace
}  // namespace kvasir
