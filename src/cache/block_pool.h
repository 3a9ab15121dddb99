// Which block of a paged cache is whose: reference counts, an index of the blocks that other sequences may
// use by their contents, and the order in which unused ones are given up. Knows nothing of keys and values.
#ifndef KVASIR_CACHE_BLOCK_POOL_H_
#define KVASIR_CACHE_BLOCK_POOL_H_

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/kernels.h"
#include "kvasir/token.h"

namespace kvasir {

using BlockId = std::int32_t;
inline constexpr BlockId kNoBlock = -1;

// The tokens of one block.
using BlockTokens = std::span<const TokenId, kernels::kCacheBlock>;

// The hash of a block from its tokens and the hash of what is before it.
using BlockHash = std::uint64_t (*)(BlockTokens tokens, std::uint64_t before);
std::uint64_t xxh3_block_hash(BlockTokens tokens, std::uint64_t before);

// A block is free, or referenced by sequences, or cached: nobody's, but findable by its contents until it is
// needed. free + cached + referenced = blocks, always. A block is findable by its tokens together with all
// that is before them: its parent, the block before it, is findable as long as it is. Everything takes
// constant time.
class BlockPool {
 public:
  // shuffle: the order in which blocks are handed out first; 0: ascending.
  explicit BlockPool(std::int32_t blocks, BlockHash hash = xxh3_block_hash, std::uint64_t shuffle = 0);

  // A block with one reference, whose contents are nobody's: a free one, or else the cached one that was used
  // least recently, of a chain its end first. nullopt if all are referenced.
  std::optional<BlockId> take();
  // One more reference to a block that is referenced or cached.
  void reference(BlockId block);
  // One less. Who holds a block holds all before it, and must release the later ones first.
  void release(BlockId block);

  // The findable block with these tokens after `parent` (kNoBlock: at the start, under this salt). Tokens are
  // compared, hashes only tell where to look.
  std::optional<BlockId> find(BlockId parent, std::string_view salt, BlockTokens tokens) const;
  // A referenced block is complete and will never be written again: makes it findable, unless one with the
  // same contents is. Returns the findable one. The parent must be findable.
  BlockId publish(BlockId block, BlockId parent, std::string_view salt, BlockTokens tokens);
  bool findable(BlockId block) const { return at(block).findable; }
  std::int32_t references(BlockId block) const { return at(block).references; }

  std::int64_t size() const { return static_cast<std::int64_t>(blocks_.size()); }
  std::int64_t free() const { return free_; }
  std::int64_t cached() const { return cached_; }
  std::int64_t referenced() const { return size() - free_ - cached_; }
  std::int64_t findable() const { return findable_; }
  std::int64_t evictions() const { return evictions_; }  // cached blocks given up, ever

  // Counts everything again; throws std::logic_error where the counts above, or the lists, are wrong.
  void check() const;

 private:
  struct Block {
    std::int32_t references = 0;
    bool findable = false;
    BlockId previous = kNoBlock, next = kNoBlock;  // in the list of free or of cached ones
    BlockId next_in_bucket = kNoBlock;
    BlockId parent = kNoBlock;
    std::uint64_t hash = 0;
    std::array<TokenId, kernels::kCacheBlock> tokens{};
    std::string salt;  // of a first block
  };
  struct List {
    BlockId first = kNoBlock, last = kNoBlock;
  };

  Block& at(BlockId block) { return blocks_[static_cast<std::size_t>(block)]; }
  const Block& at(BlockId block) const { return blocks_[static_cast<std::size_t>(block)]; }
  BlockId& bucket(std::uint64_t hash) { return buckets_[hash & (buckets_.size() - 1)]; }
  const BlockId& bucket(std::uint64_t hash) const { return buckets_[hash & (buckets_.size() - 1)]; }
  std::uint64_t hash_of(BlockId parent, std::string_view salt, BlockTokens tokens) const;
  bool same(const Block& block, BlockId parent, std::string_view salt, BlockTokens tokens) const;
  void append(List& list, BlockId block);
  void remove(List& list, BlockId block);
  void forget(BlockId block);

  BlockHash hash_;
  std::vector<Block> blocks_;
  std::vector<BlockId> buckets_;  // a power of two: first block of each, then next_in_bucket
  List free_list_, cached_list_;  // cached: the least recently used first
  std::int64_t free_ = 0, cached_ = 0, findable_ = 0, evictions_ = 0;
};

}  // namespace kvasir

#endif  // KVASIR_CACHE_BLOCK_POOL_H_
