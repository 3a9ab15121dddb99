#include "kvasir/kv_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "base/aligned_buffer.h"
#include "base/float_environment.h"
#include "kernels/kernels.h"
#include "kvasir/error.h"

namespace kvasir {

std::vector<std::vector<bool>> cache_attention_mask(std::int64_t t_new, std::int64_t pos) {
  if (t_new < 0 || pos < 0) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("cache_attention_mask: t_new {} and pos {} must not be negative", t_new, pos));
  }
  std::vector<std::vector<bool>> mask(static_cast<std::size_t>(t_new));
  for (std::int64_t row = 0; row < t_new; ++row) {
    auto& out = mask[static_cast<std::size_t>(row)];
    for (std::int64_t key = 0; key < pos + t_new; ++key) out.push_back(key > last_key_seen(pos, row));
  }
  return mask;
}

bool SequenceCache::fits(const Config& other) const {
  return other.n_layer == config().n_layer && other.n_kv_head == config().n_kv_head &&
         other.head_dim == config().head_dim;
}

struct KvCache::State {
  Config config;
  std::int32_t batch;
  KvType type;
  std::vector<std::int64_t> lengths;       // [batch]
  std::size_t sequence_elements;           // of keys (or values) of one sequence in one layer
  std::vector<std::size_t> block_offsets;  // within a head
  std::size_t head_elements;               // of keys (or values) of one head
  AlignedBuffer<std::byte> keys, values;   // [n_layer][batch][n_kv_head][head_elements], then 16 of slack
};

KvCache::KvCache(const Config& config, std::int32_t batch, KvType type) {
  check_config(config);
  if (batch < 1)
    throw Error(ErrorKind::kInvalidArgument, fmt::format("KV cache: batch is {}, must be at least 1", batch));
  // Far above any machine's memory, far below what 64 bits hold: no product here can overflow.
  constexpr double kMostNumbers = 0x1p50;
  if (2.0 * config.n_layer * batch * config.n_kv_head * config.max_seq * config.head_dim > kMostNumbers) {
    throw Error(
        ErrorKind::kCapacity,
        fmt::format("KV cache: {} layers x batch {} x {} kv heads x {} positions x head_dim {} is more than "
                    "any machine holds",
                    config.n_layer, batch, config.n_kv_head, config.max_seq, config.head_dim));
  }
  state_ = std::make_unique<State>();
  state_->config = config;
  state_->batch = batch;
  state_->type = type;
  state_->lengths.assign(static_cast<std::size_t>(batch), 0);
  const auto head_dim = static_cast<std::size_t>(config.head_dim);
  const auto max_seq = static_cast<std::size_t>(config.max_seq);
  state_->head_elements = max_seq * head_dim;
  state_->sequence_elements = static_cast<std::size_t>(config.n_kv_head) * state_->head_elements;
  for (std::size_t position = 0; position < max_seq; position += kernels::kCacheBlock) {
    state_->block_offsets.push_back(position * head_dim);
  }
  constexpr std::size_t kSlack = 16;  // the kernels read whole vectors
  const std::size_t bytes = nbytes() / 2 + kSlack * kernels::kv_type_bytes(type);
  state_->keys = AlignedBuffer<std::byte>(bytes);
  state_->values = AlignedBuffer<std::byte>(bytes);
}

KvCache::~KvCache() = default;
KvCache::KvCache(KvCache&&) noexcept = default;
KvCache& KvCache::operator=(KvCache&&) noexcept = default;

std::size_t KvCache::nbytes() const {
  return 2 * static_cast<std::size_t>(state_->config.n_layer) * static_cast<std::size_t>(state_->batch) *
         state_->sequence_elements * kernels::kv_type_bytes(state_->type);
}

std::int32_t KvCache::batch() const { return state_->batch; }
std::int64_t KvCache::max_seq() const { return state_->config.max_seq; }
KvType KvCache::type() const { return state_->type; }

const Config& KvCache::config() const { return state_->config; }

std::int64_t KvCache::length(std::int32_t sequence) const {
  return state_->lengths.at(static_cast<std::size_t>(sequence));
}

void KvCache::set_length(std::int32_t sequence, std::int64_t length) {
  if (length < 0 || length > max_seq()) {
    throw Error(ErrorKind::kCapacity,
                fmt::format("KV cache overflow: {} positions, but max_seq is {}", length, max_seq()));
  }
  state_->lengths.at(static_cast<std::size_t>(sequence)) = length;
}

void KvCache::advance(std::int64_t t) {
  if (t < 0) throw Error(ErrorKind::kInvalidArgument, fmt::format("KV cache: cannot advance by {}", t));
  for (std::int32_t sequence = 0; sequence < batch(); ++sequence) set_length(sequence, length(sequence) + t);
}

kernels::KvView KvCache::view(std::int32_t layer, std::int32_t sequence) {
  if (layer < 0 || layer >= state_->config.n_layer || sequence < 0 || sequence >= batch()) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("KV cache: no layer {} of sequence {}: it has {} layers, {} sequences", layer,
                            sequence, state_->config.n_layer, batch()));
  }
  const std::size_t index = static_cast<std::size_t>(layer) * static_cast<std::size_t>(batch()) +
                            static_cast<std::size_t>(sequence);
  const std::size_t offset = index * state_->sequence_elements * kernels::kv_type_bytes(state_->type);
  return {state_->type,          state_->keys.data() + offset, state_->values.data() + offset,
          state_->block_offsets, state_->head_elements,        max_seq()};
}

KvCache::Prefix KvCache::update(std::int32_t layer, std::span<const float> k_new,
                                std::span<const float> v_new, std::int64_t t_new) {
  const std::int64_t heads = state_->config.n_kv_head, head_dim = state_->config.head_dim;
  const auto expected = static_cast<std::size_t>(batch() * heads * t_new * head_dim);
  if (t_new < 0 || k_new.size() != expected || v_new.size() != expected) {
    throw Error(
        ErrorKind::kInvalidArgument,
        fmt::format("KV cache: keys hold {} and values {} numbers, but batch {} x kv heads {} x t_new {} x "
                    "head_dim {} are {}",
                    k_new.size(), v_new.size(), batch(), heads, t_new, head_dim, expected));
  }
  for (const std::int64_t length : state_->lengths) {
    if (length != pos())
      throw Error(ErrorKind::kInvalidArgument, "KV cache: update needs sequences of one length");
  }
  if (pos() + t_new > max_seq()) {
    throw Error(ErrorKind::kCapacity,
                fmt::format("KV cache overflow: {} positions, but max_seq is {}", pos() + t_new, max_seq()));
  }
  const auto row = static_cast<std::size_t>(heads * head_dim);
  std::vector<float> k(row), v(row);  // [head][dim] of one position
  for (std::int32_t sequence = 0; sequence < batch(); ++sequence) {
    const kernels::KvView cache = view(layer, sequence);
    for (std::int64_t t = 0; t < t_new; ++t) {
      for (std::int64_t head = 0; head < heads; ++head) {
        const std::int64_t from = ((sequence * heads + head) * t_new + t) * head_dim;
        std::copy_n(k_new.begin() + from, head_dim, k.begin() + head * head_dim);
        std::copy_n(v_new.begin() + from, head_dim, v.begin() + head * head_dim);
      }
      with_defined_floats([&] {
        kernels::reference_kernels().store_kv(cache, pos() + t, k.data(), v.data(), heads, head_dim);
      });
    }
  }
  return read(layer, pos() + t_new);
}

KvCache::Prefix KvCache::read(std::int32_t layer, std::int64_t count) const {
  if (count < 0 || count > max_seq()) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("KV cache: cannot read {} positions, max_seq is {}", count, max_seq()));
  }
  const std::int64_t heads = state_->config.n_kv_head, head_dim = state_->config.head_dim;
  Prefix prefix{count, {}, {}};
  const auto size = static_cast<std::size_t>(batch() * heads * count * head_dim);
  prefix.keys.reserve(size);
  prefix.values.reserve(size);
  for (std::int32_t sequence = 0; sequence < batch(); ++sequence) {
    const kernels::KvView cache = const_cast<KvCache*>(this)->view(layer, sequence);
    for (std::int64_t head = 0; head < heads; ++head) {
      for (std::int64_t position = 0; position < count; ++position) {
        for (std::int64_t dim = 0; dim < head_dim; ++dim) {
          prefix.keys.push_back(kernels::load_kv(cache.type, cache.k, cache.k_index(position, head, dim)));
          prefix.values.push_back(
              kernels::load_kv(cache.type, cache.v, cache.v_index(position, head, dim, head_dim)));
        }
      }
    }
  }
  return prefix;
}

}  // namespace kvasir
