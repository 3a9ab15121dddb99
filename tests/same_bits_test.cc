// The promise: whatever the schedule, the same bits as the naive path. On small models with random weights;
// the same grid runs on a real model in smollm2_test.
#include <gtest/gtest.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <cmath>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "kernels/kernels.h"
#include "kvasir/error.h"
#include "kvasir/lab.h"
#include "kvasir/sampling.h"
#include "kvasir/sequence_runner.h"
#include "kvasir/version.h"

namespace kvasir {
namespace {

Config small_config() {
  Config config;
  config.vocab_size = 100;  // no multiple of 16
  config.max_seq = 600;     // no multiple of 16, three spans of 256
  config.n_layer = 2;
  config.n_head = 6;
  config.n_kv_head = 2;
  config.head_dim = 12;  // no multiple of 16
  config.d_model = 40;
  config.d_ff = 60;
  return config;
}

std::vector<TokenId> random_ids(unsigned seed, std::size_t count, std::int32_t vocab_size) {
  std::mt19937 random(seed);
  std::vector<TokenId> ids(count);
  for (TokenId& id : ids) id = static_cast<TokenId>(random() % static_cast<unsigned>(vocab_size));
  return ids;
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

// Equality is not correctness: an engine of zeros or NaNs must not pass.
void expect_meaningful(std::span<const float> logits) {
  float low = logits[0], high = logits[0];
  for (const float value : logits) {
    ASSERT_TRUE(std::isfinite(value));
    low = std::min(low, value);
    high = std::max(high, value);
  }
  ASSERT_GT(high - low, 0.5F);
}

template <class T>
std::string sha256_of(const std::vector<T>& numbers) {
  Sha256 hash;
  hash.update(std::as_bytes(std::span(numbers)));
  return hash.hex_digest();
}

// What the sampler makes of the first 100 logits.
std::vector<double> sampling_of(std::span<const float> logits) {
  SamplingParams params;
  params.top_p = 0.9;
  Sampler sampler(params, 100);
  std::vector<double> result = sampler.probabilities(logits.first(100), {}, {});
  for (std::uint64_t position = 0; position < 50; ++position) {
    result.push_back(sampler.sample(logits.first(100), {}, {}, position));
    result.push_back(gumbel_noise(1, 0, position, 3));
  }
  result.push_back(logprobs_of(logits.first(100), 7, 0).chosen);
  return result;
}

// The floating-point control register, and a setting of it that flushes subnormals and rounds down.
#if defined(__x86_64__)
using ControlRegister = std::uint32_t;
constexpr ControlRegister kHostile = 0x1f80 | 0x8040 | 0x2000;
constexpr ControlRegister kControlBits = ~0x3fU;  // the others are flags of what has happened
ControlRegister read_control() { return _mm_getcsr(); }
void write_control(ControlRegister value) { _mm_setcsr(value); }
#else
using ControlRegister = std::uint64_t;
constexpr ControlRegister kHostile = std::uint64_t{1} << 24 | std::uint64_t{2} << 22;
constexpr ControlRegister kControlBits = ~std::uint64_t{0};
ControlRegister read_control() {
  ControlRegister value;
  asm volatile("mrs %0, fpcr" : "=r"(value));
  return value;
}
void write_control(ControlRegister value) { asm volatile("msr fpcr, %0" : : "r"(value)); }
#endif

class SameBits : public ::testing::Test {
 protected:
  SameBits() : model_(small_config(), random_weights(small_config(), 5)) {}

  // Every position's logits from its own run from position 0, on one thread, with the definition's kernels.
  std::vector<float> slow_path(const std::vector<TokenId>& ids, KvType kv_type) {
    Executor executor(1, "scalar");
    SequenceRunner runner(model_.model(), executor, 1, static_cast<std::int64_t>(ids.size()), kv_type,
                          {.use_cache = false});
    std::vector<float> logits;
    for (const TokenId& id : ids) {
      const auto row = runner.append({&id, 1});
      logits.insert(logits.end(), row.begin(), row.end());
    }
    return logits;
  }

  TinyLM model_;
};

TEST_F(SameBits, ForEveryChunkThreadCountKernelSetAndCacheType) {
  for (const std::size_t length : {129U, 280U}) {
    const std::vector<TokenId> ids = random_ids(static_cast<unsigned>(length), length, 100);
    for (const KvType kv_type : {KvType::kF32, KvType::kF16, KvType::kBF16}) {
      if (length == 280 && kv_type != KvType::kF16) continue;  // the slow path takes its time
      const std::vector<float> expected = slow_path(ids, kv_type);
      expect_meaningful(expected);
      for (const kernels::KernelSet* set : kernels::available_kernels()) {
        for (const int threads : {1, 2, 3, 7}) {
          if (std::string(set->name) == "scalar" && threads != 2) continue;
          Executor executor(threads, set->name);
          for (const std::int64_t chunk : {1, 2, 3, 7, 15, 16, 17, 31, 32, 33, 64, 127, 128, 129, 512, 0}) {
            SequenceRunner runner(model_.model(), executor, 1, static_cast<std::int64_t>(length), kv_type,
                                  {.prefill_chunk = chunk});
            const auto logits = runner.append(ids, static_cast<std::int64_t>(length));
            ASSERT_TRUE(same_bits(logits, expected))
                << length << " tokens, chunk " << chunk << ", " << threads << " threads, " << set->name;
          }
        }
      }
    }
  }
}

TEST_F(SameBits, ForEverySequenceOfABatchWhereverItStands) {
  // Five sequences of different lengths, each alone first; then together, joining late and in any order.
  std::vector<std::vector<TokenId>> prompts;
  std::vector<std::vector<float>> alone;
  Executor executor(2);
  const Config config = small_config();
  for (unsigned i = 0; i < 5; ++i) {
    prompts.push_back(random_ids(100 + i, 20 + 13 * i, 100));
    SequenceRunner runner(model_.model(), executor, 1, 600, KvType::kF32, {});
    const auto logits = runner.append(prompts.back(), static_cast<std::int64_t>(prompts.back().size()));
    alone.emplace_back(logits.begin(), logits.end());
  }
  std::mt19937 random(7);
  for (int trial = 0; trial < 30; ++trial) {
    KvCache cache(config, 5);
    std::vector<std::size_t> done(5, 0);
    std::vector<std::vector<float>> got(5);
    while (true) {
      std::vector<kvasir::Run> runs;
      for (const std::size_t s :
           {trial % 5, (trial + 3) % 5, (trial + 1) % 5, (trial + 4) % 5, (trial + 2) % 5}) {
        const std::size_t left = prompts[s].size() - done[s];
        if (left == 0 || random() % 3 == 0) continue;
        const std::size_t n = std::min<std::size_t>(left, 1 + random() % 9);
        runs.push_back({static_cast<std::int32_t>(s), std::span(prompts[s]).subspan(done[s], n),
                        static_cast<std::int64_t>(done[s]), static_cast<std::int64_t>(n)});
      }
      if (done[0] == prompts[0].size() && done[1] == prompts[1].size() && done[2] == prompts[2].size() &&
          done[3] == prompts[3].size() && done[4] == prompts[4].size()) {
        break;
      }
      if (runs.empty()) continue;
      std::vector<float> logits;
      model_.model().forward(runs, cache, executor, logits);
      std::size_t at = 0;
      for (const kvasir::Run& run : runs) {
        const std::size_t size = run.tokens.size() * 100;
        auto& out = got[static_cast<std::size_t>(run.sequence)];
        out.insert(out.end(), logits.begin() + static_cast<std::ptrdiff_t>(at),
                   logits.begin() + static_cast<std::ptrdiff_t>(at + size));
        done[static_cast<std::size_t>(run.sequence)] += run.tokens.size();
        at += size;
      }
    }
    for (std::size_t s = 0; s < 5; ++s)
      ASSERT_TRUE(same_bits(got[s], alone[s])) << "trial " << trial << " sequence " << s;
  }
}

TEST_F(SameBits, AfterTheEndOfASequenceWasForgottenAndWrittenAgain) {
  const std::vector<TokenId> ids = random_ids(9, 60, 100), other = random_ids(10, 20, 100);
  Executor executor(2);
  KvCache cache(small_config(), 1);
  std::vector<float> logits, again;
  model_.model().forward(std::vector<kvasir::Run>{{0, ids, 0, 60}}, cache, executor, logits);
  model_.model().forward(std::vector<kvasir::Run>{{0, other, 40, 0}}, cache, executor,
                         again);  // overwrite positions 40..59
  EXPECT_TRUE(again.empty());
  model_.model().forward(std::vector<kvasir::Run>{{0, std::span(ids).subspan(40), 40, 20}}, cache, executor,
                         again);
  EXPECT_TRUE(same_bits(again, std::span(logits).subspan(40 * 100)));
  EXPECT_EQ(cache.pos(), 60);
}

// On every machine and with every compiler: computed once, with the definition's kernels on x86-64.
TEST_F(SameBits, AreThoseOfTheArithmeticsVersion) {
  static_assert(kArithmeticVersion == 1, "other results have other hashes");
  const std::map<KvType, std::string> expected = {
      {KvType::kF32, "3e15730285b5692f656f29bcd7bccc3f6f1622866f1991a88097334e25c97d0d"},
      {KvType::kF16, "824564b2e52128da657f1f20139066e3e4fc304d83c8ccbe7c8dafbc4b44e9fc"},
      {KvType::kBF16, "00a7f18bfd6e651c2a05764cea26ffeca74f32f02a44a0e908c14e539bac2ca4"}};
  const std::vector<TokenId> ids = random_ids(12, 280, 100);
  Executor executor(2);
  for (const auto& [kv_type, hash] : expected) {
    SequenceRunner runner(model_.model(), executor, 1, 280, kv_type, {});
    const auto row = runner.append(ids, 280);
    const std::vector<float> logits(row.begin(), row.end());
    expect_meaningful(logits);
    EXPECT_EQ(sha256_of(logits), hash) << "KV type " << static_cast<int>(kv_type);
    if (kv_type == KvType::kF32) {
      EXPECT_EQ(sha256_of(sampling_of(logits)),
                "b3fe8dbdf1d27c81b2234d341a093469c7390919cf07a9b27b2367ada0feb34d");
    }
  }
}

// A host program may have changed the floating-point environment; nothing of ours may depend on it.
TEST_F(SameBits, InAHostThatRoundsDownAndFlushesSubnormals) {
  const std::vector<TokenId> ids = random_ids(11, 50, 100);
  Executor executor(2);
  const auto run = [&] {
    TinyLM model(small_config(), random_weights(small_config(), 5));
    SequenceRunner runner(model.model(), executor, 1, 50, KvType::kF16, {});
    const auto logits = runner.append(ids, 50);
    return std::vector<float>(logits.begin(), logits.end());
  };
  const std::vector<float> expected = run();
  const std::vector<double> expected_sampling = sampling_of(expected);
  const ControlRegister saved = read_control();
  write_control(kHostile);
  const std::vector<float> got = run();
  const std::vector<double> got_sampling = sampling_of(expected);
  const ControlRegister after = read_control();
  write_control(saved);
  EXPECT_EQ(after & kControlBits, kHostile & kControlBits) << "the host's environment was not put back";
  EXPECT_TRUE(same_bits(got, expected));
  EXPECT_EQ(got_sampling, expected_sampling);
}

TEST(Forward, RefusesWhatItCannotRunAndWritesNothing) {
  TinyLM model((Config()), 1);
  Executor executor(1);
  KvCache cache(Config(), 2);
  std::vector<float> logits;
  const std::vector<TokenId> good = {1, 2, 3}, outside = {1, 128}, negative = {-1};
  const auto run = [&](std::vector<kvasir::Run> runs) {
    model.model().forward(runs, cache, executor, logits);
  };
  EXPECT_THROW(run({{0, outside, 0, 1}}), Error);
  EXPECT_THROW(run({{0, negative, 0, 1}}), Error);
  EXPECT_THROW(run({{0, {}, 0, 0}}), Error);
  EXPECT_THROW(run({{2, good, 0, 1}}), Error);
  EXPECT_THROW(run({{-1, good, 0, 1}}), Error);
  EXPECT_THROW(run({{0, good, 1, 1}}), Error);  // a hole
  EXPECT_THROW(run({{0, good, -1, 1}}), Error);
  EXPECT_THROW(run({{0, good, 0, 4}}), Error);
  EXPECT_THROW(run({{0, good, 0, 1}, {0, good, 0, 1}}), Error);
  const std::vector<TokenId> long_prompt(65, 1);
  EXPECT_THROW(run({{0, long_prompt, 0, 1}}), Error);
  EXPECT_THROW(run({{1, good, 0, 1}, {0, long_prompt, 0, 1}}), Error);  // a bad run stops the good one
  Config other;
  other.n_kv_head = 4;
  KvCache foreign(other, 1);
  EXPECT_THROW(model.model().forward(std::vector<kvasir::Run>{{0, good, 0, 1}}, foreign, executor, logits),
               Error);
  EXPECT_EQ(cache.length(0), 0);
  EXPECT_EQ(cache.length(1), 0);
  for (const float value : cache.read(0, 64).keys) ASSERT_EQ(value, 0.0F);
  EXPECT_NO_THROW(run({{0, good, 0, 1}}));
}

}  // namespace
}  // namespace kvasir
