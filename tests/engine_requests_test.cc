// The engine's requests: sharing, scheduling, cancellation, errors and threads, the field's
// cases among them.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "watched_engine.h"

namespace kvasir {
namespace {

using testing::alone;
using testing::executor;
using testing::message_of;
using testing::random_tokens;
using testing::request;
using testing::Tokens;
using testing::toy_model;
using testing::Watched;

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

}  // namespace
}  // namespace kvasir
