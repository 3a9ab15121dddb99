// Random schedules of the engine: whatever runs beside a request, and however it is scheduled, its tokens,
// logits and text are those of a run by itself.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/sha256.h"
#include "watched_engine.h"

namespace kvasir {
namespace {

using testing::alone;
using testing::logits_alone;
using testing::random_tokens;
using testing::request;
using testing::Tokens;
using testing::Watched;

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
    options.draft_model = &testing::toy_draft();
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
      one.speculation = static_cast<Speculation>(below(3));
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
