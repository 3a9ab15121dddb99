// Guesses: by prompt lookup and by a draft model. They change nothing but the time (S19).
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "engine/choice.h"
#include "watched_engine.h"

namespace kvasir {
namespace {

using testing::executor;
using testing::message_of;
using testing::random_tokens;
using testing::request;
using testing::Tokens;
using testing::toy_draft;
using testing::toy_model;
using testing::Watched;

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
void expect_that_guesses_change_nothing(Speculation speculation) {
  std::mt19937 random(17);
  std::int64_t drafted = 0, accepted = 0;
  for (int i = 0; i < 60; ++i) {
    EngineRequest wanted = repetitive(random, 1 + random() % 64, i % 2 == 0 ? 0.0 : 0.8);
    wanted.speculation = speculation;
    wanted.sampling.seed = random();
    wanted.logprobs = 2;
    if (i % 3 == 0) wanted.sampling.presence_penalty = 0.3;
    if (i % 4 == 0) wanted.sampling.logit_bias = {{3, 2.0}, {4, -1.0}};
    if (i % 5 == 0) wanted.stop = {"ab", "x"};
    if (i % 6 == 0) wanted.ignore_eos = false;
    if (i % 7 == 0) wanted.n = 3;
    Watched watched({.kv_blocks = 20 + i, .draft_model = &testing::toy_draft()});
    watched.submit(wanted);
    watched.submit(repetitive(random, 30, 0.0));
    watched.run();
    watched.expect_as_alone(0, wanted);
    for (std::int32_t choice = 0; choice < wanted.n; ++choice) {
      drafted += watched.result(0, choice).drafted;
      accepted += watched.result(0, choice).accepted;
    }
    ASSERT_FALSE(::testing::Test::HasFailure()) << "request " << i;
  }
  EXPECT_GT(accepted, 100);
  EXPECT_GT(drafted - accepted, 100);
}

TEST(Speculation, GuessesByPromptLookupChangeNothingButTheTime) {
  expect_that_guesses_change_nothing(Speculation::kNgram);
}

TEST(Speculation, GuessesByADraftModelChangeNothingButTheTime) {
  expect_that_guesses_change_nothing(Speculation::kDraftModel);
}

TEST(Speculation, RightGuessesSaveSteps) {
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

TEST(Speculation, GuessesTakeNothingFromOthers) {
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

// ---- The draft model

std::vector<float> random_row(std::mt19937& random) {
  std::vector<float> row(testing::kVocab);
  for (float& logit : row) logit = 20.0F * testing::random_weight(random);
  return row;
}

TEST(Speculation, AGuessIsWhatTheSameLogitsWouldDraw) {
  std::mt19937 random(21);
  for (int i = 0; i < 200; ++i) {
    EngineRequest wanted = request(random_tokens(random, 1 + random() % 9), 40, i % 3 == 0 ? 0.0 : 1.0);
    wanted.sampling.seed = random();
    wanted.sampling.presence_penalty = 0.5;
    wanted.sampling.repetition_penalty = 1.2;
    Choice choice(toy_model(), wanted, 40, static_cast<std::uint32_t>(i % 4));
    for (int drawn = 0; drawn < i % 5; ++drawn) choice.accept(random_row(random));
    std::vector<std::vector<float>> rows;
    Tokens draft;
    for (int k = 0; k < 6; ++k) {
      rows.push_back(random_row(random));
      draft.push_back(choice.guess(rows.back(), draft).value());
    }
    for (std::size_t k = 0; k < draft.size(); ++k) ASSERT_EQ(choice.accept(rows[k]).id, draft[k]);
  }
}

TEST(Speculation, LogitsThatAreNotNumbersAreNoGuess) {
  const EngineRequest wanted = request({1, 2}, 5);
  Choice choice(toy_model(), wanted, 5);
  const std::vector<float> row(testing::kVocab, NAN);
  EXPECT_EQ(choice.guess(row, {}), std::nullopt);
  EXPECT_FALSE(choice.over());
}

EngineRequest drafted_request(Tokens prompt, std::int64_t max_tokens) {
  EngineRequest wanted = request(std::move(prompt), max_tokens);
  wanted.speculation = Speculation::kDraftModel;
  return wanted;
}

// The draft model has to compute the prompt, too: in pieces of step_tokens, and others go on meanwhile.
TEST(Speculation, ADraftModelsPromptDelaysNobody) {
  std::mt19937 random(22);
  Watched watched({.max_running = 2, .step_tokens = 20, .draft_model = &toy_draft()});
  const EngineRequest one = request(random_tokens(random, 10), 60);
  const EngineRequest two = drafted_request(random_tokens(random, 130), 40);
  watched.submit(one);
  watched.submit(two);
  watched.run();
  watched.expect_as_alone(0, one);
  watched.expect_as_alone(1, two);
  std::int64_t steps_of_two = 0, first_guess = 0;
  for (const StepReport& report : watched.reports) {
    std::int64_t tokens = 0;
    for (const StepReport::Part& part : report.parts) {
      tokens += part.tokens;
      if (part.request == 1 || part.first_position < 130) continue;
      ++steps_of_two;
      if (part.drafted > 0 && first_guess == 0) first_guess = steps_of_two;
    }
    EXPECT_LE(tokens, 20);
  }
  EXPECT_GT(first_guess, 6);  // 131 tokens, 20 a step
}

TEST(Speculation, ADraftModelWithAShorterContextGuessesUpToItsEnd) {
  testing::ToyFile file = testing::toy_draft_file();
  file.numbers["llama.context_length"] = 48;
  const LanguageModel draft = testing::load(file);
  std::mt19937 random(23);
  Watched watched({.draft_model = &draft});
  const EngineRequest wanted = drafted_request(random_tokens(random, 20), 100);
  watched.submit(wanted);
  watched.run();
  watched.expect_as_alone(0, wanted);
  std::int64_t last = 0;
  for (const StepReport& report : watched.reports) {
    for (const StepReport::Part& part : report.parts) {
      if (part.drafted > 0) last = part.first_position + part.tokens - 1;
    }
  }
  EXPECT_GT(watched.result(0).drafted, 0);
  EXPECT_LE(last, 48);
}

TEST(Speculation, NoDraftModelAndAWrongOneAreRefused) {
  Watched watched;
  EXPECT_NE(message_of([&] { watched.submit(drafted_request({1}, 3)); }, ErrorKind::kInvalidArgument)
                .find("no draft model"),
            std::string::npos);
  const auto refused = [](const testing::ToyFile& file) {
    const LanguageModel draft = testing::load(file);
    const EngineOptions options{.kv_blocks = 4, .draft_model = &draft};
    return message_of([&] { Engine(toy_model(), executor(1), options); }, ErrorKind::kInvalidArgument);
  };
  testing::ToyFile file = testing::toy_draft_file();
  std::swap(file.tokens[3], file.tokens[4]);
  EXPECT_NE(refused(file).find("token 3 is another one"), std::string::npos);
}

TEST(Speculation, KeysAndValuesOfBothModelsShareTheBytes) {
  const std::size_t own = PagedKvCache::block_bytes(toy_model().model().config(), KvType::kF16);
  const std::size_t drafts = PagedKvCache::block_bytes(toy_draft().model().config(), KvType::kF16);
  const auto blocks = [&](const LanguageModel* draft) {
    return Engine(toy_model(), executor(1), {.kv_bytes = 12 * own, .draft_model = draft})
        .metrics()
        .cache.blocks;
  };
  EXPECT_EQ(drafts * 2, own);  // one layer of two
  EXPECT_EQ(blocks(nullptr), 12);
  EXPECT_EQ(blocks(&toy_draft()), 8);
}

}  // namespace
}  // namespace kvasir
