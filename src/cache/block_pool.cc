#include "cache/block_pool.h"

#include <algorithm>
#include <bit>
#include <numeric>
#include <random>
#include <stdexcept>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace kvasir {

std::uint64_t xxh3_block_hash(BlockTokens tokens, std::uint64_t before) {
  return XXH3_64bits_withSeed(tokens.data(), tokens.size_bytes(), before);
}

BlockPool::BlockPool(std::int32_t blocks, BlockHash hash, std::uint64_t shuffle)
    : hash_(hash),
      blocks_(static_cast<std::size_t>(blocks)),
      buckets_(std::bit_ceil(2 * static_cast<std::size_t>(blocks)), kNoBlock) {
  std::vector<BlockId> order(blocks_.size());
  std::iota(order.begin(), order.end(), 0);
  if (shuffle != 0) std::shuffle(order.begin(), order.end(), std::mt19937_64(shuffle));
  for (const BlockId block : order) append(free_list_, block);
  free_ = size();
}

void BlockPool::append(List& list, BlockId block) {
  at(block).previous = list.last;
  at(block).next = kNoBlock;
  (list.last == kNoBlock ? list.first : at(list.last).next) = block;
  list.last = block;
}

void BlockPool::remove(List& list, BlockId block) {
  const Block& b = at(block);
  (b.previous == kNoBlock ? list.first : at(b.previous).next) = b.next;
  (b.next == kNoBlock ? list.last : at(b.next).previous) = b.previous;
}

std::optional<BlockId> BlockPool::take() {
  BlockId block = free_list_.first;
  if (block != kNoBlock) {
    remove(free_list_, block);
    --free_;
  } else {
    block = cached_list_.first;
    if (block == kNoBlock) return std::nullopt;
    remove(cached_list_, block);
    --cached_;
    ++evictions_;
    forget(block);
  }
  at(block).references = 1;
  return block;
}

void BlockPool::reference(BlockId block) {
  Block& b = at(block);
  if (b.references == 0) {
    if (!b.findable) throw std::logic_error("BlockPool: a reference to a free block");
    remove(cached_list_, block);
    --cached_;
  }
  ++b.references;
}

void BlockPool::release(BlockId block) {
  Block& b = at(block);
  if (b.references == 0) throw std::logic_error("BlockPool: a release too many");
  if (--b.references > 0) return;
  if (b.findable) {
    append(cached_list_, block);
    ++cached_;
  } else {
    append(free_list_, block);
    ++free_;
  }
}

std::uint64_t BlockPool::hash_of(BlockId parent, std::string_view salt, BlockTokens tokens) const {
  return hash_(tokens, parent == kNoBlock ? XXH3_64bits(salt.data(), salt.size()) : at(parent).hash);
}

bool BlockPool::same(const Block& block, BlockId parent, std::string_view salt, BlockTokens tokens) const {
  return block.parent == parent && (parent != kNoBlock || block.salt == salt) &&
         std::equal(tokens.begin(), tokens.end(), block.tokens.begin());
}

std::optional<BlockId> BlockPool::find(BlockId parent, std::string_view salt, BlockTokens tokens) const {
  for (BlockId block = bucket(hash_of(parent, salt, tokens)); block != kNoBlock;
       block = at(block).next_in_bucket) {
    if (same(at(block), parent, salt, tokens)) return block;
  }
  return std::nullopt;
}

BlockId BlockPool::publish(BlockId block, BlockId parent, std::string_view salt, BlockTokens tokens) {
  if (at(block).references == 0 || (parent != kNoBlock && !at(parent).findable)) {
    throw std::logic_error("BlockPool: a block that cannot be published");
  }
  if (const auto found = find(parent, salt, tokens)) return *found;
  Block& b = at(block);
  b.findable = true;
  b.parent = parent;
  b.hash = hash_of(parent, salt, tokens);
  std::copy(tokens.begin(), tokens.end(), b.tokens.begin());
  b.salt = parent == kNoBlock ? salt : std::string_view();
  b.next_in_bucket = bucket(b.hash);
  bucket(b.hash) = block;
  ++findable_;
  return block;
}

// Makes a block unfindable.
void BlockPool::forget(BlockId block) {
  Block& b = at(block);
  BlockId* link = &bucket(b.hash);
  while (*link != block) link = &at(*link).next_in_bucket;
  *link = b.next_in_bucket;
  b.findable = false;
  --findable_;
}

void BlockPool::check() const {
  const auto require = [](bool right, const char* what) {
    if (!right) throw std::logic_error(std::string("BlockPool: ") + what);
  };
  std::int64_t free = 0, cached = 0, findable = 0, in_buckets = 0;
  for (const Block& block : blocks_) {
    require(block.references >= 0, "a negative reference count");
    findable += block.findable ? 1 : 0;
    if (block.references > 0) continue;
    (block.findable ? cached : free) += 1;
  }
  for (const Block& block : blocks_) {
    if (!block.findable || block.parent == kNoBlock) continue;
    require(at(block.parent).findable, "a findable block whose parent is not");
    require(block.references == 0 || at(block.parent).references > 0,
            "a referenced block whose parent is not");
  }
  for (const BlockId first : buckets_) {
    for (BlockId block = first; block != kNoBlock; block = at(block).next_in_bucket) ++in_buckets;
  }
  const auto length = [&](const List& list) {
    std::int64_t count = 0;
    for (BlockId block = list.first; block != kNoBlock; block = at(block).next) ++count;
    return count;
  };
  require(free == free_ && length(free_list_) == free, "wrong count of free blocks");
  require(cached == cached_ && length(cached_list_) == cached, "wrong count of cached blocks");
  require(findable == findable_ && in_buckets == findable, "wrong count of findable blocks");
}

}  // namespace kvasir
