#include "kvasir/paged_kv_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "kvasir/error.h"

namespace kvasir {
namespace {

using Tokens = std::vector<TokenId>;

Config small_config() {
  Config config;
  config.vocab_size = 64;
  config.max_seq = 512;
  config.n_layer = 2;
  config.n_head = 2;
  config.n_kv_head = 2;
  config.head_dim = 2;
  config.d_model = 4;
  config.d_ff = 4;
  return config;
}

PagedKvCache make_cache(std::int64_t blocks, std::int32_t sequences, PagedKvCacheOptions options = {}) {
  options.blocks = blocks;
  options.sequences = sequences;
  options.type = KvType::kF32;
  return {small_config(), options};
}

Tokens counting(std::int64_t count, TokenId first = 0) {
  Tokens tokens(static_cast<std::size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

// Stands for a forward pass: what it writes at a position tells the tokens up to there.
class Writer {
 public:
  explicit Writer(PagedKvCache& cache) : cache_(cache) {}

  // Positions from the sequence's length to `end`. False if there is no room.
  bool write(std::int32_t sequence, const Tokens& tokens, std::int64_t end) {
    if (!cache_.reserve(sequence, end)) return false;
    for (std::int64_t p = cache_.length(sequence); p < end; ++p) {
      EXPECT_GE(p, cache_.first_writable(sequence));
      const float told = expected(tokens, p);
      for (std::size_t place = 0; place < kPlaces; ++place)
        number(sequence, p, place) = told + kDistance * place;
    }
    cache_.set_length(sequence, end);
    return true;
  }
  void expect_intact(std::int32_t sequence, const Tokens& tokens) {
    for (std::int64_t p = 0; p < cache_.length(sequence); ++p) {
      const float told = expected(tokens, p);
      for (std::size_t place = 0; place < kPlaces; ++place) {
        ASSERT_EQ(number(sequence, p, place), told + kDistance * place)
            << "position " << p << " of " << cache_.length(sequence) << ", place " << place;
      }
    }
  }

 private:
  static constexpr std::size_t kPlaces = 8;  // keys and values of two heads in two layers
  static constexpr float kDistance = 0.0625F;

  float& number(std::int32_t sequence, std::int64_t position, std::size_t place) {
    const kernels::KvView view = cache_.view(place / 4, sequence);
    const std::int64_t head = place / 2 % 2;
    return place % 2 == 0 ? reinterpret_cast<float*>(view.k)[view.k_index(position, head, 1)]
                          : reinterpret_cast<float*>(view.v)[view.v_index(position, head, 0, 2)];
  }
  static float expected(const Tokens& tokens, std::int64_t position) {
    std::uint32_t hash = 17;
    for (std::int64_t p = 0; p <= position; ++p) {
      hash = hash * 31 + static_cast<std::uint32_t>(tokens[static_cast<std::size_t>(p)]) + 1;
    }
    return static_cast<float>(hash % 1'000'003);
  }

  PagedKvCache& cache_;
};

// Opens, writes and publishes a whole prompt.
std::int32_t run(PagedKvCache& cache, const Tokens& tokens, std::string_view salt = {}) {
  const std::int32_t sequence = cache.open(tokens, salt);
  EXPECT_TRUE(Writer(cache).write(sequence, tokens, std::ssize(tokens)));
  cache.publish(sequence, tokens);
  cache.check();
  return sequence;
}

TEST(PagedKvCache, TwoPromptsWithTheSame32TokensShareExactlyTwoBlocks) {
  PagedKvCache cache = make_cache(64, 8);
  Tokens a = counting(40), b = counting(40);
  b[32] = 63;
  run(cache, a);
  run(cache, b);
  const PagedKvCache::Usage usage = cache.usage();
  EXPECT_EQ(usage.held, 6);
  EXPECT_EQ(usage.referenced, 4);
  for (const std::size_t i : {0U, 1U}) EXPECT_EQ(cache.block_table(0)[i], cache.block_table(1)[i]);
  EXPECT_NE(cache.block_table(0)[2], cache.block_table(1)[2]);
}

// S sequences of a common prompt of P tokens and u of their own: without sharing S * ceil((P + u) / 16)
// blocks, with it floor(P / 16) of them once.
TEST(PagedKvCache, SharingSavesTheBlocksOfTheClosedForm) {
  for (const std::int64_t sequences : {1, 2, 7}) {
    for (const std::int64_t common : {0, 1, 15, 16, 17, 32, 100}) {
      for (const std::int64_t own : {1, 5, 16, 40}) {
        PagedKvCache cache = make_cache(200, 8);
        for (std::int64_t s = 0; s < sequences; ++s) {
          Tokens tokens = counting(common);
          for (const TokenId id : counting(own, static_cast<TokenId>(1000 * (s + 1)))) tokens.push_back(id);
          run(cache, tokens);
        }
        const std::int64_t each = (common + own + 15) / 16, shared = common / 16;
        EXPECT_EQ(cache.usage().held, sequences * each);
        EXPECT_EQ(cache.usage().referenced, shared + sequences * (each - shared))
            << sequences << " sequences, " << common << " common tokens, " << own << " of their own";
      }
    }
  }
}

TEST(PagedKvCache, TheLastTokenOfAPromptIsNeverShared) {
  for (const std::int64_t length : {1, 15, 16, 17, 31, 32, 33, 48}) {
    PagedKvCache cache = make_cache(16, 4);
    run(cache, counting(length));
    const std::int64_t shared = (length - 1) / 16 * 16;
    EXPECT_EQ(cache.shared_positions(counting(length)), shared) << length;
    EXPECT_EQ(cache.length(cache.open(counting(length))), shared) << length;
  }
}

TEST(PagedKvCache, ARecycledBlockIsNotFoundUnderItsOldContents) {
  for (const bool collide : {false, true}) {
    PagedKvCache cache = make_cache(6, 2, {.every_hash_collides = collide});
    Writer writer(cache);
    const Tokens x = counting(48), y = counting(96, 100);
    cache.close(run(cache, x));
    EXPECT_EQ(cache.usage().cached, 3);
    cache.close(run(cache, y));
    EXPECT_EQ(cache.shared_positions(x), 0);
    EXPECT_EQ(cache.shared_positions(y), 80);
    EXPECT_EQ(cache.usage().evictions, 3);
    const std::int32_t again = run(cache, x);
    writer.expect_intact(again, x);
    cache.close(again);
    Tokens other_end = x, other_start = x;
    other_end.back() = 7;
    other_start.front() = 7;
    EXPECT_EQ(cache.shared_positions(other_end), 32);
    EXPECT_EQ(cache.shared_positions(other_start), 0);
    EXPECT_EQ(cache.usage().referenced, 0);
    EXPECT_EQ(cache.usage().free + cache.usage().cached, 6);
  }
}

TEST(PagedKvCache, TheEndOfAChainIsGivenUpFirst) {
  PagedKvCache cache = make_cache(6, 2);
  cache.close(run(cache, counting(64)));                     // 4 blocks
  cache.close(run(cache, counting(16, 200)));                // 1, used later
  const std::int32_t other = run(cache, counting(32, 300));  // takes the free one, then one that is cached
  EXPECT_EQ(cache.shared_positions(counting(65)), 48);
  EXPECT_EQ(cache.shared_positions(counting(17, 200)), 16);
  cache.close(other);
}

TEST(PagedKvCache, SaltsKeepSequencesApart) {
  PagedKvCache cache = make_cache(16, 4);
  cache.close(run(cache, counting(33), "one"));
  EXPECT_EQ(cache.shared_positions(counting(33), "one"), 32);
  EXPECT_EQ(cache.shared_positions(counting(33), "two"), 0);
  EXPECT_EQ(cache.shared_positions(counting(33)), 0);
}

TEST(PagedKvCache, NothingIsFoundBeforeItIsPublishedOrWithoutSharing) {
  PagedKvCache cache = make_cache(16, 4);
  const std::int32_t sequence = cache.open(counting(33));
  ASSERT_TRUE(Writer(cache).write(sequence, counting(33), 33));
  EXPECT_EQ(cache.shared_positions(counting(33)), 0);
  cache.publish(sequence, counting(33));
  EXPECT_EQ(cache.shared_positions(counting(33)), 32);

  PagedKvCache alone = make_cache(16, 4, {.share_prefixes = false});
  run(alone, counting(33));
  EXPECT_EQ(alone.shared_positions(counting(33)), 0);
}

TEST(PagedKvCache, TwoThatComputeTheSameTogetherEndUpWithOneBlock) {
  PagedKvCache cache = make_cache(16, 4);
  Writer writer(cache);
  const Tokens tokens = counting(40);
  const std::int32_t a = cache.open(tokens), b = cache.open(tokens);
  ASSERT_TRUE(writer.write(a, tokens, 40));
  ASSERT_TRUE(writer.write(b, tokens, 40));
  EXPECT_EQ(cache.usage().referenced, 6);
  cache.publish(a, tokens);
  cache.publish(b, tokens);
  cache.check();
  EXPECT_EQ(cache.usage().referenced, 4);
  writer.expect_intact(b, tokens);
}

TEST(PagedKvCache, AForkSharesEverythingUntilOneOfThemWrites) {
  PagedKvCache cache = make_cache(16, 4);
  Writer writer(cache);
  Tokens a = counting(20), b = a;
  const std::int32_t first = run(cache, a), second = cache.fork(first);
  EXPECT_EQ(cache.usage().referenced, 2);
  EXPECT_EQ(cache.first_writable(first), 32);  // nobody may write to the block that both have
  for (const TokenId id : {50, 51}) a.push_back(id);
  for (const TokenId id : {60, 61, 62}) b.push_back(id);
  ASSERT_TRUE(writer.write(second, b, 23));
  ASSERT_TRUE(writer.write(first, a, 22));
  EXPECT_EQ(cache.usage().copies, 1);
  EXPECT_EQ(cache.usage().referenced, 3);
  writer.expect_intact(first, a);
  writer.expect_intact(second, b);
  cache.close(first);
  writer.expect_intact(second, b);
  cache.check();
}

TEST(PagedKvCache, WhatIsPublishedIsCopiedBeforeItIsWrittenAgain) {
  PagedKvCache cache = make_cache(16, 4);
  Writer writer(cache);
  Tokens tokens = counting(40);
  const std::int32_t sequence = run(cache, tokens), reader = cache.open(tokens);
  cache.set_length(sequence, 20);
  Tokens other = tokens;
  other[20] = 63;
  ASSERT_TRUE(writer.write(sequence, other, 40));
  cache.publish(sequence, other);
  cache.check();
  writer.expect_intact(sequence, other);
  writer.expect_intact(reader, tokens);
  EXPECT_EQ(cache.shared_positions(tokens), 32);
}

TEST(PagedKvCache, ReservingMoreThanThereIsChangesNothing) {
  PagedKvCache cache = make_cache(4, 4);
  const std::int32_t a = run(cache, counting(20)), b = cache.open(counting(1, 100));
  const PagedKvCache::Usage before = cache.usage();
  EXPECT_FALSE(cache.reserve(b, 33));
  EXPECT_EQ(cache.usage().free, before.free);
  EXPECT_EQ(cache.capacity(b), 0);
  EXPECT_TRUE(cache.reserve(b, 32));
  EXPECT_FALSE(cache.reserve(a, 33));
  cache.close(b);
  EXPECT_TRUE(cache.reserve(a, 64));
  cache.check();
}

TEST(PagedKvCache, WrongUseIsRefused) {
  const auto message = [](const auto& fn) {
    try {
      fn();
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string("nothing thrown");
  };
  EXPECT_NE(message([] { make_cache(0, 1); }).find("0 blocks"), std::string::npos);
  EXPECT_NE(message([] { make_cache(1, 0); }).find("0 sequences"), std::string::npos);
  EXPECT_NE(message([] { make_cache(std::int64_t{1} << 40, 1); }).find("more than any machine"),
            std::string::npos);
  PagedKvCache cache = make_cache(4, 1);
  EXPECT_NE(message([&] { cache.length(0); }).find("sequence 0 is not open"), std::string::npos);
  EXPECT_NE(message([&] { cache.close(-1); }).find("sequence -1 is not open"), std::string::npos);
  const std::int32_t sequence = run(cache, counting(5));
  EXPECT_NE(message([&] { cache.open({}); }).find("all 1 sequences are open"), std::string::npos);
  EXPECT_NE(message([&] { cache.fork(sequence); }).find("all 1 sequences are open"), std::string::npos);
  EXPECT_NE(message([&] { cache.set_length(sequence, 17); }).find("17 positions"), std::string::npos);
  EXPECT_NE(message([&] { cache.publish(sequence, counting(4)); }).find("4 tokens of a sequence of 5"),
            std::string::npos);
  EXPECT_NE(message([&] { cache.view(2, sequence); }).find("no layer 2"), std::string::npos);
}

// Everything at once, against what each sequence should read.
TEST(PagedKvCache, EverySequenceReadsItsOwnNumbersWhateverHappens) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937_64 random(seed);
    const auto below = [&](std::uint64_t n) { return static_cast<std::int64_t>(random() % n); };
    const std::int64_t blocks = seed % 4 == 0 ? 129 + below(80) : 6 + below(20);  // in groups, or in one
    PagedKvCache cache = make_cache(
        blocks, 6,
        {.share_prefixes = seed % 5 != 0, .shuffle = seed % 3, .every_hash_collides = seed % 4 == 0});
    Writer writer(cache);
    struct Open {
      std::int32_t sequence;
      Tokens tokens;  // of its length
    };
    std::vector<Open> open;
    // Few different tokens, so that beginnings agree often.
    const auto extend = [&](Tokens& tokens, std::int64_t count) {
      for (std::int64_t i = 0; i < count; ++i) tokens.push_back(tokens.size() % 16 == 3 ? below(2) : 1);
    };
    for (int step = 0; step < 400; ++step) {
      const std::int64_t what = below(10);
      if (what < 3 && open.size() < 6) {
        Tokens tokens;
        extend(tokens, 1 + below(70));
        const std::int32_t sequence = cache.open(tokens);
        if (writer.write(sequence, tokens, std::ssize(tokens))) {
          open.push_back({sequence, tokens});
        } else {
          cache.close(sequence);
        }
      } else if (!open.empty()) {
        Open& one = open[static_cast<std::size_t>(below(open.size()))];
        if (what < 6) {
          Tokens tokens = one.tokens;
          extend(tokens, 1 + below(20));
          if (writer.write(one.sequence, tokens, std::ssize(tokens))) one.tokens = tokens;
        } else if (what == 6) {
          cache.publish(one.sequence, one.tokens);
        } else if (what == 7 && open.size() < 6) {
          const Open copy{cache.fork(one.sequence), one.tokens};
          open.push_back(copy);
        } else if (what == 8) {
          one.tokens.resize(static_cast<std::size_t>(below(one.tokens.size() + 1)));
          cache.set_length(one.sequence, std::ssize(one.tokens));
        } else if (what == 9) {
          cache.close(one.sequence);
          one = open.back();
          open.pop_back();
        }
      }
      cache.check();
      for (const Open& one : open) writer.expect_intact(one.sequence, one.tokens);
      ASSERT_FALSE(testing::Test::HasFailure());
    }
    for (const Open& one : open) cache.close(one.sequence);
    EXPECT_EQ(cache.usage().referenced, 0);
    EXPECT_EQ(cache.usage().open_sequences, 0);
    EXPECT_EQ(cache.usage().held, 0);
  }
}

}  // namespace
}  // namespace kvasir
