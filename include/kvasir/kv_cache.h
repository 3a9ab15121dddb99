// Where the key and value of position p of a sequence live: what every layout offers, and the preallocated
// one.
#ifndef KVASIR_KV_CACHE_H_
#define KVASIR_KV_CACHE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kvasir/config.h"

namespace kvasir {

namespace kernels {
struct KvView;
}

// A query sees the keys up to its own position and no others: row i of a run that starts at `first_position`
// sees keys 0 .. last_key_seen(first_position, i).
inline std::int64_t last_key_seen(std::int64_t first_position, std::int64_t row) {
  return first_position + row;
}

// The same rule as the matrix that textbooks draw: [t_new][pos + t_new], true where attention is NOT allowed.
// Error(kInvalidArgument) for negative arguments.
std::vector<std::vector<bool>> cache_attention_mask(std::int64_t t_new, std::int64_t pos);

// What a forward pass needs of a cache. Keys are stored after RoPE: a position never changes once written.
//
// Thread contract: one writer at a time; the worker threads of one forward pass write disjoint positions.
class SequenceCache {
 public:
  virtual ~SequenceCache() = default;

  virtual std::int32_t sequences() const = 0;
  virtual std::int64_t length(std::int32_t sequence) const = 0;    // positions written so far
  virtual std::int64_t capacity(std::int32_t sequence) const = 0;  // positions that there is room for
  // From here on, a position may be written: what is before it may be shared with others.
  virtual std::int64_t first_writable(std::int32_t sequence) const = 0;
  // Forward, after writing; or back, to forget. Error(kCapacity) if there is no room for so many.
  virtual void set_length(std::int32_t sequence, std::int64_t length) = 0;
  virtual const Config& config() const = 0;  // of the model that it was made for
  bool fits(const Config& config) const;     // whether that has this one's shape
  // For the kernels: one sequence in one layer.
  virtual kernels::KvView view(std::int32_t layer, std::int32_t sequence) = 0;
};

// Keys and values of `batch` sequences, `max_seq` positions each, for every layer: 2 * n_layer * batch *
// n_kv_head * max_seq * head_dim numbers.
class KvCache : public SequenceCache {
 public:
  // Error(kInvalidArgument) if batch < 1 or the config is not valid.
  KvCache(const Config& config, std::int32_t batch, KvType type = KvType::kF32);
  ~KvCache() override;
  KvCache(KvCache&&) noexcept;
  KvCache& operator=(KvCache&&) noexcept;

  struct Prefix {
    std::int64_t positions;
    std::vector<float> keys, values;  // [batch][n_kv_head][positions][head_dim]
  };

  // Writes k_new and v_new, [batch][n_kv_head][t_new][head_dim], at positions [pos, pos + t_new) of one layer
  // and returns that layer's positions [0, pos + t_new). Does not advance pos: every layer writes at the same
  // one. All sequences must have the same length. Error(kCapacity) if pos + t_new > max_seq; nothing is
  // written then.
  Prefix update(std::int32_t layer, std::span<const float> k_new, std::span<const float> v_new,
                std::int64_t t_new);

  // What positions [0, count) of one layer hold.
  Prefix read(std::int32_t layer, std::int64_t count) const;

  // Adds t positions to every sequence: called once a forward, after the last layer.
  void advance(std::int64_t t);

  std::int64_t pos() const { return length(0); }  // positions written so far, when all sequences agree
  std::int32_t sequences() const override { return batch(); }
  std::int64_t length(std::int32_t sequence) const override;
  std::int64_t capacity(std::int32_t /*sequence*/) const override { return max_seq(); }
  std::int64_t first_writable(std::int32_t /*sequence*/) const override { return 0; }
  void set_length(std::int32_t sequence, std::int64_t length) override;

  std::size_t nbytes() const;  // of keys and values, by the formula above
  std::int32_t batch() const;
  std::int64_t max_seq() const;
  KvType type() const;
  const Config& config() const override;
  kernels::KvView view(std::int32_t layer, std::int32_t sequence) override;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvasir

#endif  // KVASIR_KV_CACHE_H_
