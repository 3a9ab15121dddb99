#include "kvasir/verify.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "engine/verify_paths.h"
#include "kernels/faulty.h"
#include "kernels/kernels.h"
#include "kvasir/error.h"
#include "kvasir/lab.h"
#include "kvasir/sequence_runner.h"

namespace kvasir {
namespace {

Config three_layers() {
  Config config;
  config.vocab_size = 100;
  config.max_seq = 300;  // more than one span of attention
  config.n_layer = 3;
  config.n_head = 6;
  config.n_kv_head = 2;
  config.head_dim = 12;
  config.d_model = 40;
  config.d_ff = 60;
  return config;
}

std::vector<std::vector<TokenId>> prompts_of(const std::vector<std::size_t>& lengths) {
  std::mt19937 random(4);
  std::vector<std::vector<TokenId>> prompts;
  for (const std::size_t length : lengths) {
    auto& prompt = prompts.emplace_back(length);
    for (TokenId& id : prompt) id = static_cast<TokenId>(random() % 100);
  }
  return prompts;
}

const std::vector<std::vector<TokenId>> kPrompts = prompts_of({6, 21, 8, 270});

VerifyReport verify_lab(const StateDict& weights, const std::vector<std::vector<TokenId>>& prompts,
                        const VerifyOptions& options = {}) {
  const TinyLM model(three_layers(), weights);
  return verify(model.model(), prompts, options);
}

StateDict good_weights() { return random_weights(three_layers(), 5); }

std::string failure(const std::function<void()>& call, ErrorKind kind = ErrorKind::kRuntime) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return error.what();
  }
  return "nothing was thrown";
}

void expect_failure(const StateDict& weights, const std::vector<std::vector<TokenId>>& prompts,
                    const std::string& words, ErrorKind kind = ErrorKind::kRuntime) {
  const std::string message = failure([&] { verify_lab(weights, prompts); }, kind);
  EXPECT_NE(message.find(words), std::string::npos) << message;
}

TEST(Verify, RunsEveryPathWithEveryKernelSetAndComparesAllValues) {
  const VerifyReport report = verify_lab(good_weights(), kPrompts);
  EXPECT_EQ(report.differing(), 0);
  std::map<std::string, std::set<std::string>> sets;
  std::map<std::string, std::set<int>> threads;
  for (const VerifiedPath& path : report.paths) {
    sets[path.name].insert(path.kernel_set);
    threads[path.name].insert(path.threads);
    // Scalar kernels and the paths of quadratic cost take the short prompts.
    const bool all = path.kernel_set != "scalar" && path.name != "uncached, every step";
    EXPECT_GE(path.positions, all ? 6 + 21 + 8 + 270 : 6 + 8) << path.name;
    EXPECT_EQ(path.logits, path.positions * 100);
    // Embedding and final norm, and in each of the layers query, attention, key, value, activation and seven
    // more of d_model.
    if (path.name != "preempted and resumed") {
      EXPECT_EQ(path.intermediates, path.positions * (2 * 40 + 3 * (2 * 72 + 2 * 24 + 60 + 6 * 40)));
    }
  }
  for (const Path& path : verify_paths()) {
    EXPECT_EQ(sets[path.name].size(), kernels::available_kernels().size()) << path.name;
    for (const int n : {1, 2, 3}) EXPECT_TRUE(threads[path.name].contains(n)) << path.name;
  }
}

TEST(Verify, QuickRunsEveryPathAndEveryKernelSetToo) {
  const VerifyReport report = verify_lab(good_weights(), kPrompts, {.threads = 2, .quick = true});
  EXPECT_EQ(report.differing(), 0);
  std::set<std::string> paths, sets;
  std::set<int> threads;
  for (const VerifiedPath& path : report.paths) {
    paths.insert(path.name);
    sets.insert(path.kernel_set);
    threads.insert(path.threads);
  }
  EXPECT_EQ(paths.size(), verify_paths().size());
  EXPECT_EQ(sets.size(), kernels::available_kernels().size());
  EXPECT_EQ(threads, (std::set<int>{1, 2, 3}));
}

// What two machines compare depends on model and prompts, not on how many paths there are.
TEST(Verify, HashesAreThoseOfTheUncachedPath) {
  const VerifyReport report = verify_lab(good_weights(), kPrompts, {.threads = 2, .quick = true});
  const TinyLM model(three_layers(), good_weights());
  Executor executor(1, kernels::reference_kernels());
  Sha256 all;
  for (std::size_t i = 0; i < kPrompts.size(); ++i) {
    SequenceRunner runner(model.model(), executor, 1, 300, KvType::kF16, {.use_cache = false});
    Sha256 hash;
    hash.update(std::as_bytes(runner.append(kPrompts[i], static_cast<std::int64_t>(kPrompts[i].size()))));
    EXPECT_EQ(report.prompts[i].logits_sha256, hash.hex_digest());
    EXPECT_EQ(report.prompts[i].every_step, kPrompts[i].size() <= 8);
    all.update(std::as_bytes(std::span(report.prompts[i].logits_sha256)));
  }
  EXPECT_EQ(report.logits_sha256, all.hex_digest());

  const VerifyReport other_threads = verify_lab(good_weights(), kPrompts, {.threads = 5, .quick = true});
  EXPECT_EQ(other_threads.logits_sha256, report.logits_sha256);
  EXPECT_EQ(other_threads.prompts_sha256, report.prompts_sha256);
  const VerifyReport other_cache =
      verify_lab(good_weights(), kPrompts, {.kv_type = KvType::kF32, .threads = 2, .quick = true});
  EXPECT_NE(other_cache.logits_sha256, report.logits_sha256);
  EXPECT_EQ(other_cache.prompts_sha256, report.prompts_sha256);
  // The same tokens, cut elsewhere.
  EXPECT_NE(
      verify_lab(good_weights(), prompts_of({7, 20, 8, 270}), {.threads = 2, .quick = true}).prompts_sha256,
      report.prompts_sha256);
}

struct Effect {
  const char* kernel;
  Operation seen_at;
  bool directly;  // the flipped bit is one of the result
};
// In a model of float32 weights; quantized and bfloat16 ones are in tests/cli/test_verify.py.
constexpr Effect kEffects[] = {
    {"linear", Operation::kFfnDown, true},       {"rms_norm", Operation::kFfnNorm, true},
    {"swiglu", Operation::kFfnActivation, true}, {"add", Operation::kFfnResidual, true},
    {"rope", Operation::kQuery, true},           {"store_kv", Operation::kAttention, false},
    {"attention", Operation::kAttention, false}, {"combine_spans", Operation::kAttention, true},
};

TEST(Verify, NoticesOneBitInOneKernelAndNamesThePlace) {
  const std::string fastest = kernels::available_kernels().back()->name;
  for (const Effect& effect : kEffects) {
    for (const KvType kv_type : {KvType::kF16, KvType::kF32}) {
      VerifyOptions options{.kv_type = kv_type, .threads = 2, .quick = true, .flip_bit = effect.kernel};
      const VerifyReport report = verify_lab(good_weights(), prompts_of({6, 21}), options);
      int described = 0;
      for (const VerifiedPath& path : report.paths) {
        ASSERT_EQ(path.difference.has_value(), path.kernel_set == fastest)
            << effect.kernel << " " << path.name;
        if (!path.difference.has_value()) continue;
        const VerifyDifference& difference = *path.difference;
        EXPECT_EQ(difference.operation, effect.seen_at) << effect.kernel << " " << path.name;
        EXPECT_EQ(difference.layer, 1);  // the middle one of 3
        EXPECT_EQ(difference.prompt, 0U);
        EXPECT_EQ(difference.position, 5);  // the last of 6
        EXPECT_LE(difference.logit_rows, path.positions);
        if (!difference.again.has_value()) continue;
        ++described;
        EXPECT_GE(difference.again->different, 1);
        EXPECT_LE(difference.again->different, difference.again->values);
        EXPECT_GT(difference.again->largest, 0.0);
        EXPECT_LT(difference.again->largest, 1e-3);
        if (effect.directly) {
          EXPECT_EQ(difference.again->different, 1);
        }
      }
      EXPECT_EQ(described, 1) << effect.kernel;
    }
  }
}

TEST(Verify, AFaultInAKernelThatTheModelDoesNotUseIsNotMet) {
  for (const char* kernel : {"quantize", "round_bf16", "geglu"}) {
    const VerifyOptions options{.threads = 2, .quick = true, .flip_bit = kernel};
    EXPECT_EQ(verify_lab(good_weights(), prompts_of({6, 21}), options).differing(), 0);
  }
}

TEST(Verify, EveryKernelCanBeMadeFaulty) {
  // A kernel that is added to the set without being added here would not be watched over.
  constexpr std::size_t kMembers = (sizeof(kernels::KernelSet) - sizeof(const char*)) / sizeof(void (*)());
  EXPECT_EQ(kernels::faulty_kernels().size(), kMembers);
  for (const kernels::FaultyKernel& kernel : kernels::faulty_kernels()) {
    const kernels::KernelSet& set = kernels::with_fault(kernels::reference_kernels(), kernel, {});
    EXPECT_NE(std::memcmp(&set, &kernels::reference_kernels(), sizeof set), 0) << kernel.name;
  }
}

TEST(Verify, FailsIfAgreementWouldProveNothing) {
  const auto spoil = [](const std::string& name, float value, std::size_t count) {
    StateDict weights = good_weights();
    auto& values = weights.at(name).values;
    std::fill_n(values.begin(), count == 0 ? values.size() : count, value);
    return weights;
  };
  for (const float value : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    expect_failure(spoil("model.layers.1.mlp.down_proj.weight", value, 1), kPrompts, "not finite");
    expect_failure(spoil("lm_head.weight", value, 1), kPrompts, "not finite");
  }
  expect_failure(spoil("model.norm.weight", 0.0F, 0), kPrompts, "all logits are equal");
  expect_failure(good_weights(), prompts_of({9}), "too few");  // 900 logits

  StateDict deaf = good_weights();  // to its input
  auto& embedding = deaf.at("model.embed_tokens.weight").values;
  for (std::size_t i = 40; i < embedding.size(); ++i) embedding[i] = embedding[i - 40];
  for (const char* layer : {"0", "1", "2"}) {
    auto& values = deaf.at(std::string("model.layers.") + layer + ".self_attn.o_proj.weight").values;
    std::fill(values.begin(), values.end(), 0.0F);
  }
  expect_failure(deaf, kPrompts, "the same at every position");
}

TEST(Verify, RefusesPromptsThatItCannotRun) {
  const auto expect_refused = [](const std::vector<std::vector<TokenId>>& prompts, const std::string& words,
                                 ErrorKind kind = ErrorKind::kInvalidArgument) {
    expect_failure(good_weights(), prompts, words, kind);
  };
  expect_refused({}, "no prompt");
  expect_refused({{1, 2}, {}}, "prompt 2 has no tokens");
  expect_refused({{1, 100}}, "100");
  expect_refused({{1, -1}}, "-1");
  expect_refused(prompts_of({301}), "301", ErrorKind::kCapacity);
  const auto call = [] { verify_lab(good_weights(), kPrompts, {.flip_bit = "softmax"}); };
  EXPECT_NE(failure(call, ErrorKind::kInvalidArgument).find("softmax"), std::string::npos);
}

TEST(Verify, TellsHowFarItIs) {
  const TinyLM model(three_layers(), good_weights());
  std::vector<double> shares;
  std::vector<std::string> names;
  const VerifyReport report =
      verify(model.model(), kPrompts, {.threads = 2, .quick = true},
             {.slow_path = [&](double share) { shares.push_back(share); },
              .path_compared = [&](const VerifiedPath& path) { names.push_back(path.name); }});
  ASSERT_FALSE(shares.empty());
  EXPECT_TRUE(std::is_sorted(shares.begin(), shares.end()));
  EXPECT_GT(shares.front(), 0.0);
  EXPECT_EQ(shares.back(), 1.0);
  ASSERT_EQ(names.size(), report.paths.size());
  for (std::size_t i = 0; i < names.size(); ++i) EXPECT_EQ(names[i], report.paths[i].name);
}

// ---- That the paths are what they are called.

class PassSizes : public RowSink {
 public:
  void row(const RowPlace& place, std::span<const float>) override {
    if (place.stage == 0) places.insert({place.prompt, place.position});
  }
  void passed_layer(std::int64_t rows) override { sizes.push_back(rows); }
  std::set<std::pair<std::size_t, std::int64_t>> places;
  std::vector<std::int64_t> sizes;  // rows of each pass
};

TEST(VerifyPaths, CutTheWorkAsTheirNamesSay) {
  Config config = three_layers();
  config.n_layer = 1;
  const TinyLM model(config, 1);
  Executor executor(1);
  const auto prompts = prompts_of({5, 19});
  const std::vector<std::size_t> both = {0, 1};
  std::map<std::string, std::vector<std::int64_t>> sizes;
  for (const Path& path : verify_paths()) {
    PassSizes sink;
    {
      PathDriver driver(model.model(), executor, KvType::kF32, prompts, sink);
      path.run(driver, both);
    }
    sizes[path.name] = sink.sizes;
    EXPECT_EQ(sink.places.size(), 5U + 19U) << path.name;  // nothing was left out
  }
  using Sizes = std::vector<std::int64_t>;
  EXPECT_EQ(sizes["whole prompt"], (Sizes{5, 19}));
  EXPECT_EQ(sizes["chunks of 7"], (Sizes{5, 7, 7, 5}));
  EXPECT_EQ(sizes["chunks of 16"], (Sizes{5, 16, 3}));
  EXPECT_EQ(sizes["token by token"], Sizes(24, 1));
  EXPECT_EQ(sizes["batch of whole prompts"], (Sizes{24}));
  EXPECT_EQ(sizes["batch, token by token"], (Sizes{2, 2, 2, 2, 2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}));
  EXPECT_EQ(sizes["half, then token by token"], (Sizes{3, 1, 1, 10, 1, 1, 1, 1, 1, 1, 1, 1, 1}));
  EXPECT_EQ(sizes["guesses, right and wrong"], (Sizes{4, 4, 2, 4, 4, 4, 4, 4, 4, 4, 3}));
  EXPECT_EQ(sizes["paged, right, wrong guesses"], sizes["guesses, right and wrong"]);
  EXPECT_EQ(sizes["preempted and resumed"], (Sizes{3, 10, 5, 16, 3}));
  Sizes every_step;
  for (const std::int64_t length : {5, 19}) {
    for (std::int64_t end = 1; end <= length; ++end) every_step.push_back(end);
  }
  EXPECT_EQ(sizes["uncached, every step"], every_step);
  EXPECT_EQ(std::accumulate(sizes["batch, joined at any time"].begin(),
                            sizes["batch, joined at any time"].end(), 0),
            24);
}

TEST(VerifyPaths, NumberTheStagesInTheOrderOfTheirComputation) {
  const Stages stages(3);
  EXPECT_EQ(stages.count(), 1U + 3 * 11 + 2);
  std::size_t next = 0;
  const auto expect_next = [&](Operation operation, std::int32_t layer) {
    EXPECT_EQ(stages.index(operation, layer), next);
    EXPECT_EQ(stages.at(next), (std::pair(operation, layer)));
    ++next;
  };
  expect_next(Operation::kEmbedding, -1);
  for (std::int32_t layer = 0; layer < 3; ++layer) {
    for (int i = static_cast<int>(Operation::kAttentionNorm); i <= static_cast<int>(Operation::kFfnResidual);
         ++i) {
      expect_next(static_cast<Operation>(i), layer);
    }
  }
  expect_next(Operation::kFinalNorm, -1);
  expect_next(Operation::kLogits, -1);
  EXPECT_EQ(next, stages.count());
  EXPECT_EQ(stages.logits(), next - 1);
}

}  // namespace
}  // namespace kvasir
