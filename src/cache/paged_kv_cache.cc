#include "kvasir/paged_kv_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "base/aligned_buffer.h"
#include "cache/block_pool.h"
#include "kernels/kernels.h"
#include "kvasir/error.h"

namespace kvasir {
namespace {

static_assert(PagedKvCache::kBlockPositions == kernels::kCacheBlock);

constexpr std::int64_t kBlock = kernels::kCacheBlock;

// Keys (or values) of one head in one block and layer.
std::size_t head_elements(const Config& config) {
  return static_cast<std::size_t>(kBlock) * static_cast<std::size_t>(config.head_dim);
}

std::size_t layers_and_heads(const Config& config) {
  return static_cast<std::size_t>(config.n_layer) * static_cast<std::size_t>(config.n_kv_head);
}

BlockTokens tokens_of_block(std::span<const TokenId> tokens, std::size_t block) {
  return tokens.subspan(block * kBlock).first<kBlock>();
}

std::uint64_t one_hash_for_all(BlockTokens /*tokens*/, std::uint64_t /*before*/) { return 1; }

void check_options(const Config& config, const PagedKvCacheOptions& options) {
  check_config(config);
  if (options.blocks < 1 || options.sequences < 1) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("paged KV cache: {} blocks and {} sequences, must be at least 1 each",
                            options.blocks, options.sequences));
  }
  constexpr double kMostBytes = 0x1p50;  // far above any machine's memory: no product here can overflow
  const double bytes = static_cast<double>(options.blocks) * 4.0 * config.n_layer *
                       static_cast<double>(kBlock) * config.n_kv_head * config.head_dim;
  if (bytes > kMostBytes || options.blocks > (std::int64_t{1} << 30)) {
    throw Error(ErrorKind::kCapacity,
                fmt::format("paged KV cache: {} blocks are more than any machine holds", options.blocks));
  }
}

}  // namespace

struct PagedKvCache::State {
  State(const Config& model_config, const PagedKvCacheOptions& cache_options);

  struct Sequence {
    bool open = false;
    std::int64_t length = 0;
    std::int64_t first_writable = 0;
    std::size_t published = 0;  // of the first blocks: all findable
    std::vector<BlockId> blocks;
    std::vector<std::size_t> offsets;  // of the blocks, for the kernels
    std::string salt;
  };

  Sequence& at(std::int32_t sequence);
  const Sequence& at(std::int32_t sequence) const { return const_cast<State*>(this)->at(sequence); }
  std::int32_t take_sequence();
  void push(Sequence& sequence, BlockId block) const;
  void set_block(Sequence& sequence, std::size_t index, BlockId block) const;
  std::size_t offset_of(BlockId block) const;
  bool exclusive(BlockId block) const { return pool.references(block) == 1 && !pool.findable(block); }
  void copy_block(BlockId from, BlockId to);
  template <class Fn>
  void for_each_shared(std::span<const TokenId> tokens, std::string_view salt, Fn fn) const;

  Config config;
  PagedKvCacheOptions options;
  BlockPool pool;
  // [groups of blocks][n_layer][n_kv_head][group_blocks][head_elements], then 16 elements of slack. What a
  // head reads of blocks that follow one another is in one piece; the memory of groups that were never used
  // is never touched.
  AlignedBuffer<std::byte> keys, values;
  std::size_t group_blocks;
  std::vector<Sequence> sequences;
  std::vector<std::int32_t> closed;  // numbers that are not in use, the next one last
  std::int64_t held = 0, copies = 0;
};

PagedKvCache::State::State(const Config& model_config, const PagedKvCacheOptions& cache_options)
    : config(model_config),
      options(cache_options),
      pool(static_cast<std::int32_t>(options.blocks),
           options.every_hash_collides ? one_hash_for_all : xxh3_block_hash, options.shuffle),
      sequences(static_cast<std::size_t>(options.sequences)) {
  constexpr std::size_t kMostBlocks = 64;  // of a group
  const auto blocks = static_cast<std::size_t>(options.blocks);
  const std::size_t groups = (blocks + kMostBlocks - 1) / kMostBlocks;
  group_blocks = (blocks + groups - 1) / groups;
  constexpr std::size_t kSlack = 16;  // the kernels read whole vectors
  const std::size_t bytes =
      (groups * group_blocks * layers_and_heads(config) * head_elements(config) + kSlack) *
      kernels::kv_type_bytes(options.type);
  keys = AlignedBuffer<std::byte>::uninitialized(bytes);
  values = AlignedBuffer<std::byte>::uninitialized(bytes);
  for (std::int32_t i = options.sequences; i-- > 0;) closed.push_back(i);
  const auto longest = static_cast<std::size_t>(std::min(options.blocks, blocks_of(config.max_seq)));
  for (Sequence& sequence : sequences) {
    sequence.blocks.reserve(longest);
    sequence.offsets.reserve(longest);
  }
}

PagedKvCache::State::Sequence& PagedKvCache::State::at(std::int32_t sequence) {
  if (sequence < 0 || sequence >= options.sequences || !sequences[static_cast<std::size_t>(sequence)].open) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("paged KV cache: sequence {} is not open", sequence));
  }
  return sequences[static_cast<std::size_t>(sequence)];
}

std::int32_t PagedKvCache::State::take_sequence() {
  if (closed.empty()) {
    throw Error(ErrorKind::kCapacity,
                fmt::format("paged KV cache: all {} sequences are open", options.sequences));
  }
  const std::int32_t number = closed.back();
  closed.pop_back();
  Sequence& sequence = sequences[static_cast<std::size_t>(number)];
  sequence.open = true;
  sequence.length = sequence.first_writable = 0;
  sequence.published = 0;
  return number;
}

void PagedKvCache::State::push(Sequence& sequence, BlockId block) const {
  sequence.blocks.push_back(kNoBlock);
  sequence.offsets.push_back(0);
  set_block(sequence, sequence.blocks.size() - 1, block);
}

void PagedKvCache::State::set_block(Sequence& sequence, std::size_t index, BlockId block) const {
  sequence.blocks[index] = block;
  sequence.offsets[index] = offset_of(block);
}

// Elements to a block's first layer and head.
std::size_t PagedKvCache::State::offset_of(BlockId block) const {
  const auto number = static_cast<std::size_t>(block);
  const std::size_t groups_before = number / group_blocks;
  return (groups_before * group_blocks * layers_and_heads(config) + number % group_blocks) *
         head_elements(config);
}

void PagedKvCache::State::copy_block(BlockId from, BlockId to) {
  const std::size_t element = kernels::kv_type_bytes(options.type);
  const std::size_t bytes = head_elements(config) * element, stride = group_blocks * bytes;
  for (std::byte* base : {keys.data(), values.data()}) {
    std::byte* target = base + offset_of(to) * element;
    const std::byte* source = base + offset_of(from) * element;
    for (std::size_t head = 0; head < layers_and_heads(config); ++head) {
      std::memcpy(target + head * stride, source + head * stride, bytes);
    }
  }
  ++copies;
}

// The blocks that a sequence with these tokens can share, from the first on.
template <class Fn>
void PagedKvCache::State::for_each_shared(std::span<const TokenId> tokens, std::string_view salt,
                                          Fn fn) const {
  if (!options.share_prefixes || tokens.empty()) return;
  BlockId parent = kNoBlock;
  for (std::size_t block = 0; block < (tokens.size() - 1) / kBlock; ++block) {
    const auto found = pool.find(parent, salt, tokens_of_block(tokens, block));
    if (!found) return;
    fn(*found);
    parent = *found;
  }
}

PagedKvCache::PagedKvCache(const Config& config, const PagedKvCacheOptions& options) {
  check_options(config, options);
  state_ = std::make_unique<State>(config, options);
}
PagedKvCache::~PagedKvCache() = default;
PagedKvCache::PagedKvCache(PagedKvCache&&) noexcept = default;
PagedKvCache& PagedKvCache::operator=(PagedKvCache&&) noexcept = default;

std::size_t PagedKvCache::block_bytes(const Config& config, KvType type) {
  return 2 * layers_and_heads(config) * head_elements(config) * kernels::kv_type_bytes(type);
}

std::int32_t PagedKvCache::open(std::span<const TokenId> tokens, std::string_view salt) {
  const std::int32_t number = state_->take_sequence();
  State::Sequence& sequence = state_->at(number);
  sequence.salt = salt;
  state_->for_each_shared(tokens, salt, [&](BlockId block) {
    state_->pool.reference(block);
    state_->push(sequence, block);
  });
  sequence.published = sequence.blocks.size();
  sequence.length = sequence.first_writable = static_cast<std::int64_t>(sequence.published) * kBlock;
  state_->held += std::ssize(sequence.blocks);
  return number;
}

std::int64_t PagedKvCache::shared_positions(std::span<const TokenId> tokens, std::string_view salt) const {
  std::int64_t positions = 0;
  state_->for_each_shared(tokens, salt, [&](BlockId /*block*/) { positions += kBlock; });
  return positions;
}

std::int32_t PagedKvCache::fork(std::int32_t sequence) {
  State::Sequence& from = state_->at(sequence);
  const std::int32_t number = state_->take_sequence();
  State::Sequence& to = state_->at(number);
  const auto used = static_cast<std::size_t>(blocks_of(from.length));
  to.length = from.length;
  to.published = std::min(from.published, used);
  to.salt = from.salt;
  for (std::size_t i = 0; i < used; ++i) {
    state_->pool.reference(from.blocks[i]);
    state_->push(to, from.blocks[i]);
  }
  state_->held += static_cast<std::int64_t>(used);
  to.first_writable = static_cast<std::int64_t>(used) * kBlock;
  from.first_writable = std::max(from.first_writable, to.first_writable);
  return number;
}

bool PagedKvCache::reserve(std::int32_t number, std::int64_t end) {
  State::Sequence& sequence = state_->at(number);
  const auto first = static_cast<std::size_t>(sequence.length / kBlock);
  const std::int64_t added = std::max<std::int64_t>(blocks_of(end) - std::ssize(sequence.blocks), 0);
  std::int64_t needed = added;
  for (std::size_t i = first; i < sequence.blocks.size(); ++i) {
    if (!state_->exclusive(sequence.blocks[i])) ++needed;
  }
  if (needed > state_->pool.free() + state_->pool.cached()) return false;
  for (std::size_t i = sequence.blocks.size(); i-- > first;) {  // later ones are released first
    const BlockId old = sequence.blocks[i];
    if (state_->exclusive(old)) continue;
    const BlockId copy = *state_->pool.take();
    state_->copy_block(old, copy);
    state_->set_block(sequence, i, copy);
    state_->pool.release(old);
  }
  for (std::int64_t i = 0; i < added; ++i) state_->push(sequence, *state_->pool.take());
  state_->held += added;
  sequence.published = std::min(sequence.published, first);
  sequence.first_writable = static_cast<std::int64_t>(first) * kBlock;
  return true;
}

void PagedKvCache::publish(std::int32_t number, std::span<const TokenId> tokens) {
  State::Sequence& sequence = state_->at(number);
  if (std::ssize(tokens) < sequence.length) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("paged KV cache: {} tokens of a sequence of {}", tokens.size(), sequence.length));
  }
  if (!state_->options.share_prefixes) return;
  const auto complete = static_cast<std::size_t>(sequence.length / kBlock);
  for (std::size_t i = sequence.published; i < complete; ++i, ++sequence.published) {
    const BlockId own = sequence.blocks[i];
    // Who shares a block must share all before it: a fork that holds it, too, would not if those were
    // replaced.
    if (!state_->exclusive(own) && !state_->pool.findable(own)) break;
    const BlockId parent = i == 0 ? kNoBlock : sequence.blocks[i - 1];
    const BlockId findable = state_->pool.publish(own, parent, sequence.salt, tokens_of_block(tokens, i));
    if (findable != own) {  // somebody has computed the same numbers: one block is enough
      state_->pool.reference(findable);
      state_->set_block(sequence, i, findable);
      state_->pool.release(own);
    }
  }
  sequence.first_writable =
      std::max(sequence.first_writable, static_cast<std::int64_t>(sequence.published) * kBlock);
}

void PagedKvCache::close(std::int32_t number) {
  State::Sequence& sequence = state_->at(number);
  state_->held -= std::ssize(sequence.blocks);
  for (std::size_t i = sequence.blocks.size(); i-- > 0;) state_->pool.release(sequence.blocks[i]);
  sequence.blocks.clear();
  sequence.offsets.clear();
  sequence.open = false;
  state_->closed.push_back(number);
}

std::int32_t PagedKvCache::sequences() const { return state_->options.sequences; }
std::int64_t PagedKvCache::length(std::int32_t sequence) const { return state_->at(sequence).length; }
std::int64_t PagedKvCache::capacity(std::int32_t sequence) const {
  return std::ssize(state_->at(sequence).blocks) * kBlock;
}
std::int64_t PagedKvCache::first_writable(std::int32_t sequence) const {
  return state_->at(sequence).first_writable;
}

void PagedKvCache::set_length(std::int32_t sequence, std::int64_t length) {
  if (length < 0 || length > capacity(sequence)) {
    throw Error(ErrorKind::kCapacity,
                fmt::format("paged KV cache: {} positions of a sequence, it has blocks for {}", length,
                            capacity(sequence)));
  }
  state_->at(sequence).length = length;
}

const Config& PagedKvCache::config() const { return state_->config; }

kernels::KvView PagedKvCache::view(std::int32_t layer, std::int32_t number) {
  if (layer < 0 || layer >= state_->config.n_layer) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("paged KV cache: no layer {} of {}", layer, state_->config.n_layer));
  }
  const State::Sequence& sequence = state_->at(number);
  const std::size_t head_stride = state_->group_blocks * head_elements(config());
  const std::size_t offset = static_cast<std::size_t>(layer) * static_cast<std::size_t>(config().n_kv_head) *
                             head_stride * kernels::kv_type_bytes(state_->options.type);
  return {state_->options.type,
          state_->keys.data() + offset,
          state_->values.data() + offset,
          sequence.offsets,
          head_stride,
          std::ssize(sequence.blocks) * kBlock};
}

std::span<const std::int32_t> PagedKvCache::block_table(std::int32_t sequence) const {
  return state_->at(sequence).blocks;
}

PagedKvCache::Usage PagedKvCache::usage() const {
  const BlockPool& pool = state_->pool;
  return {.blocks = pool.size(),
          .free = pool.free(),
          .cached = pool.cached(),
          .referenced = pool.referenced(),
          .open_sequences = state_->options.sequences - std::ssize(state_->closed),
          .held = state_->held,
          .evictions = pool.evictions(),
          .copies = state_->copies};
}

std::int32_t PagedKvCache::references(std::int32_t block) const { return state_->pool.references(block); }

void PagedKvCache::check() const {
  state_->pool.check();
  std::int64_t held = 0;
  std::vector<std::int32_t> references(static_cast<std::size_t>(state_->pool.size()), 0);
  for (const State::Sequence& sequence : state_->sequences) {
    held += std::ssize(sequence.blocks);
    for (const BlockId block : sequence.blocks) ++references[static_cast<std::size_t>(block)];
  }
  for (BlockId block = 0; block < state_->pool.size(); ++block) {
    if (references[static_cast<std::size_t>(block)] != state_->pool.references(block)) {
      throw std::logic_error(fmt::format("PagedKvCache: block {} is held {} times, counted {} times", block,
                                         references[static_cast<std::size_t>(block)],
                                         state_->pool.references(block)));
    }
  }
  if (held != state_->held) throw std::logic_error("PagedKvCache: a wrong count of held blocks");
}

}  // namespace kvasir
