// The paged KV cache (Kwon et al. 2023): a pool of blocks of 16 positions, and a table of blocks for each
// sequence.
#ifndef KVASIR_PAGED_KV_CACHE_H_
#define KVASIR_PAGED_KV_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "kvasir/config.h"
#include "kvasir/kv_cache.h"
#include "kvasir/token.h"

namespace kvasir {

struct PagedKvCacheOptions {
  std::int64_t blocks = 0;     // in the pool, at least 1
  std::int32_t sequences = 0;  // open at once, at least 1
  KvType type = KvType::kF16;
  bool share_prefixes = true;        // whether blocks are found by their contents
  std::uint64_t shuffle = 0;         // another order of physical blocks for every number; 0: ascending
  bool every_hash_collides = false;  // for tests: contents alone tell blocks apart
};

// Positions are shared block by block: a sequence that begins with the same tokens as another uses the same
// blocks, while the other is open or until the pool needs them. Nothing is written to a block that somebody
// else sees. Opening, growing and closing take constant time a block, and allocate nothing once as many
// blocks have been in use.
class PagedKvCache : public SequenceCache {
 public:
  // Memory is touched when it is first written. Error(kInvalidArgument) for options out of range.
  PagedKvCache(const Config& config, const PagedKvCacheOptions& options);
  ~PagedKvCache() override;
  PagedKvCache(PagedKvCache&&) noexcept;
  PagedKvCache& operator=(PagedKvCache&&) noexcept;

  static constexpr std::int64_t kBlockPositions = 16;
  static std::int64_t blocks_of(std::int64_t positions) {
    return (positions + kBlockPositions - 1) / kBlockPositions;
  }
  // Keys and values of one block in all layers.
  static std::size_t block_bytes(const Config& config, KvType type);

  // ---- Sequences: numbers below `sequences`, given out again after close().

  // A new sequence that begins with `tokens`: what is found of them is shared, in whole blocks, but never all
  // of them, since somebody wants the logits of the last. length() tells how many positions that were. Only
  // sequences of one salt share. Error(kCapacity) if as many are open as there may be.
  std::int32_t open(std::span<const TokenId> tokens, std::string_view salt = {});
  // How many positions open() would share.
  std::int64_t shared_positions(std::span<const TokenId> tokens, std::string_view salt = {}) const;
  // Another sequence that shares everything that this one holds. Error(kCapacity) as open().
  std::int32_t fork(std::int32_t sequence);
  // Makes room for positions up to `end`, in blocks that are this sequence's alone from its length on. False
  // if the pool has too few blocks left: nothing has changed then.
  bool reserve(std::int32_t sequence, std::int64_t end);
  // `tokens` are those of the sequence, up to its length at least: they will not change any more, so that its
  // complete blocks may be shared.
  void publish(std::int32_t sequence, std::span<const TokenId> tokens);
  void close(std::int32_t sequence);

  std::int32_t sequences() const override;
  std::int64_t length(std::int32_t sequence) const override;
  std::int64_t capacity(std::int32_t sequence) const override;
  std::int64_t first_writable(std::int32_t sequence) const override;
  void set_length(std::int32_t sequence, std::int64_t length) override;
  const Config& config() const override;
  kernels::KvView view(std::int32_t layer, std::int32_t sequence) override;
  std::span<const std::int32_t> block_table(std::int32_t sequence) const;

  // ---- Accounting: free + cached + referenced = blocks, always.

  struct Usage {
    std::int64_t blocks, free, cached, referenced;
    std::int64_t available() const { return free + cached; }
    std::int64_t open_sequences;
    std::int64_t held;       // blocks of all sequences, each counted as often as it is used
    std::int64_t evictions;  // cached blocks given up, ever
    std::int64_t copies;     // blocks copied before they were written, ever
  };
  Usage usage() const;
  std::int32_t references(std::int32_t block) const;
  // Counts everything again. std::logic_error where a count is wrong: a bug of this class.
  void check() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvasir

#endif  // KVASIR_PAGED_KV_CACHE_H_
