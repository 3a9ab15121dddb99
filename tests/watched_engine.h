// An engine with a small model, whose every step and answer is watched and held to runs of each request by
// itself.
#ifndef KVASIR_TESTS_WATCHED_ENGINE_H_
#define KVASIR_TESTS_WATCHED_ENGINE_H_

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kvasir/engine.h"
#include "kvasir/error.h"
#include "kvasir/sequence_runner.h"
#include "toy_model.h"

namespace kvasir::testing {

using Tokens = std::vector<TokenId>;
using ChoiceKey = std::pair<RequestId, std::int32_t>;

inline Executor& executor(int threads) {
  static Executor one(1), two(2);
  return threads == 1 ? one : two;
}

inline LanguageModel load(const ToyFile& file) {
  const std::string path = file.write();
  LanguageModel loaded = LanguageModel::load(path, Activations::kDefault, executor(1));
  std::remove(path.c_str());
  return loaded;
}

// A context of 256 positions, 16 blocks.
inline ToyFile toy_model_file() {
  ToyFile file = toy_file(TensorType::kQ8_0);
  file.numbers["llama.context_length"] = 256;
  return file;
}
inline const LanguageModel& toy_model() {
  static const LanguageModel model = load(toy_model_file());
  return model;
}

// Of the toy model's first layer, and the first 64 of its feed-forward's 512 inner values: guesses of it are
// right at times.
inline ToyFile toy_draft_file() {
  constexpr std::uint64_t kInner = 64, kBlockValues = 32, kBlockBytes = 34;
  ToyFile file = toy_model_file();
  file.numbers["llama.block_count"] = 1;
  file.numbers["llama.feed_forward_length"] = kInner;
  std::erase_if(file.tensors, [](const auto& tensor) { return tensor.first.starts_with("blk.1."); });
  for (const char* name : {"blk.0.ffn_gate.weight", "blk.0.ffn_up.weight"}) {
    Stored& matrix = file.tensors.at(name);
    matrix.shape = {kInner, kWidth};
    matrix.data.resize(kInner * kWidth / kBlockValues * kBlockBytes);
  }
  Stored& down = file.tensors.at("blk.0.ffn_down.weight");
  const std::vector<std::byte> all = std::exchange(down.data, {});
  down.shape = {kWidth, kInner};
  for (std::uint64_t row = 0; row < kWidth; ++row) {
    const auto begin =
        all.begin() + static_cast<std::ptrdiff_t>(row * kFeedForward / kBlockValues * kBlockBytes);
    down.data.insert(down.data.end(), begin, begin + kInner / kBlockValues * kBlockBytes);
  }
  return file;
}
inline const LanguageModel& toy_draft() {
  static const LanguageModel model = load(toy_draft_file());
  return model;
}

inline Tokens random_tokens(std::mt19937& random, std::size_t count) {
  Tokens tokens(count);
  for (TokenId& id : tokens) id = static_cast<TokenId>(random() % 26);
  return tokens;
}

inline EngineRequest request(Tokens prompt, std::int64_t max_tokens, double temperature = 0.0) {
  EngineRequest wanted;
  wanted.prompt = std::move(prompt);
  wanted.max_tokens = max_tokens;
  wanted.sampling.temperature = temperature;
  wanted.ignore_eos = true;
  return wanted;
}

// What a request gives by itself: a contiguous cache, one sequence, one thread.
inline GenerateResult alone(const EngineRequest& wanted, std::int32_t choice = 0) {
  GenerateRequest one;
  static_cast<CompletionRequest&>(one) = wanted;
  one.sampling.choice += static_cast<std::uint32_t>(choice);
  return generate(toy_model(), executor(1), one);
}

// The logits that its tokens were drawn from, by one run over all of them without any cache from before.
inline std::vector<float> logits_alone(const EngineRequest& wanted, const Tokens& output) {
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

inline std::string message_of(const std::function<void()>& call, ErrorKind kind) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  return "nothing was thrown";
}

}  // namespace kvasir::testing

#endif  // KVASIR_TESTS_WATCHED_ENGINE_H_
