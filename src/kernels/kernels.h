// The arithmetic of the engine: one table of functions per instruction set, all with the same bits.
//
// reference/ is the definition: plain scalar code, one operation after the other. Every other set computes
// exactly that. docs/arithmetic.md gives the definition in words.
#ifndef KVASIR_KERNELS_KERNELS_H_
#define KVASIR_KERNELS_KERNELS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/packed_matrix.h"
#include "kvasir/config.h"

namespace kvasir::kernels {

inline constexpr std::int64_t kCacheBlock = 16;  // positions in one block of the KV cache
inline constexpr std::int64_t kSpan = 256;       // positions in one span of the attention sum

// 32 inputs, rounded to 8 bits.
struct QuantizedBlock {
  std::int8_t quants[kQuantBlock];
  float scale;                  // input = scale * quant
  float scaled_sum;             // scale * sum, rounded once
  std::int32_t sum;             // of the quants
  std::int32_t first_half_sum;  // of the first 16
};
static_assert(sizeof(QuantizedBlock) == 48);

// The inputs of a linear layer, in the form that the type of its weights asks for (input_kind).
struct InputRows {
  std::int64_t k = 0;
  const float* floats = nullptr;           // kFloat: [rows][k]
  const std::uint32_t* pairs = nullptr;    // kBF16: [rows][(k + 1) / 2], see round_bf16
  const QuantizedBlock* blocks = nullptr;  // kInt8: [rows][k / 32]

  // The same inputs from a later row on.
  InputRows from(std::int64_t row) const {
    const auto skip = [row](auto* p, std::int64_t columns) { return p == nullptr ? p : p + row * columns; };
    return {k, skip(floats, k), skip(pairs, (k + 1) / 2), skip(blocks, k / kQuantBlock)};
  }
};

inline constexpr std::size_t kv_type_bytes(KvType type) { return type == KvType::kF32 ? 4 : 2; }

// The keys and values of one sequence in one layer. Block b holds the positions 16 b .. 16 b + 15; of a kv
// head the keys of a block lie as [dim][slot] and its values as [slot][dim], those of other heads
// `head_stride` from there. A cache whose capacity is no multiple of 16 ends with a block of fewer slots. 15
// elements after the last block must be readable.
struct KvView {
  KvType type = KvType::kF32;
  std::byte* k = nullptr;
  std::byte* v = nullptr;
  std::span<const std::size_t> block_offsets;  // in elements, the same for k and v
  std::size_t head_stride = 0;                 // in elements
  std::int64_t capacity = 0;                   // positions

  std::int64_t slots(std::int64_t block) const {
    const std::int64_t left = capacity - block * kCacheBlock;
    return left < kCacheBlock ? left : kCacheBlock;
  }
  // Elements from k (v) to the number of one position, kv head and dim.
  std::size_t k_index(std::int64_t position, std::int64_t head, std::int64_t dim) const {
    return start(position, head) +
           static_cast<std::size_t>(dim * slots(position / kCacheBlock) + position % kCacheBlock);
  }
  std::size_t v_index(std::int64_t position, std::int64_t head, std::int64_t dim,
                      std::int64_t head_dim) const {
    return start(position, head) + static_cast<std::size_t>(position % kCacheBlock * head_dim + dim);
  }

  const std::byte* keys(std::int64_t position, std::int64_t head) const {
    return k + k_index(position, head, 0) * kv_type_bytes(type);
  }

 private:
  std::size_t start(std::int64_t position, std::int64_t head) const {
    return block_offsets[static_cast<std::size_t>(position / kCacheBlock)] +
           static_cast<std::size_t>(head) * head_stride;
  }
};

// One number of the cache; index as KvView gives it.
float load_kv(KvType type, const std::byte* base, std::size_t index);

// Consecutive positions of one sequence against one kv head: for each row, the n_group query heads that share
// it. Row r sees the positions first_position .. position + r.
struct AttentionQuery {
  const float* q;  // row r, head g: q[r * row_stride + g * head_dim], head_dim numbers
  float* out;      // likewise
  std::int64_t row_stride;
  std::int64_t rows;
  std::int64_t n_group;
  std::int64_t head_dim;
  std::int64_t kv_head;
  std::int64_t first_position;  // 0 without a window
  std::int64_t position;        // of the first row
  float scale;                  // multiplies each score
  // Where the keys begin that the thread will probably read next; they are fetched meanwhile.
  const std::byte* next_keys = nullptr;

  std::int64_t span_begin() const { return first_position / kSpan; }
  std::int64_t span_end() const { return (position + rows - 1) / kSpan + 1; }
};

// What one query (a row's head) has of one span: the weighted sum of values [head_dim, to a multiple of 16],
// then the largest score and the sum of the exponentials, in as many floats.
inline constexpr std::int64_t sums_stride(std::int64_t head_dim) { return (head_dim + 15) / 16 * 16 + 16; }

// Floats of scratch that attention() needs.
std::size_t attention_scratch(const AttentionQuery& query);

struct KernelSet {
  const char* name;

  // Panels [panel_begin, panel_end) of y[r][n] = x[r] . w[n] for `rows` rows; y has y_stride floats a row.
  void (*linear)(const PackedMatrix& w, std::int64_t panel_begin, std::int64_t panel_end, const InputRows& x,
                 std::int64_t rows, float* y, std::int64_t y_stride);

  // One row of k inputs to int8 blocks of 32: scale = absmax / 127, quant = x / scale rounded to nearest
  // even. A block below 2^-100 becomes zeros with scale 0; one with a value that is not finite gets a scale
  // that is not.
  void (*quantize)(const float* x, std::int64_t k, QuantizedBlock* blocks);

  // Rounds to bfloat16 (nearest even); |x| < 2^-48 becomes 0, so that no product with a bfloat16 weight of
  // that range is ever subnormal (hardware bfloat16 instructions flush those). Two inputs to a pair, the even
  // one in the high half, which those instructions add first; an odd k ends with a zero.
  void (*round_bf16)(const float* x, std::int64_t k, std::uint32_t* pairs);

  // y = x / sqrt(mean(x^2) + eps) * weight.
  void (*rms_norm)(const float* x, const float* weight, float eps, std::int64_t n, float* y);

  // out = silu(gate) * up.
  void (*swiglu)(const float* gate, const float* up, std::int64_t n, float* out);

  // out = gelu(gate) * up, gelu in its tanh form.
  void (*geglu)(const float* gate, const float* up, std::int64_t n, float* out);

  // x += y.
  void (*add)(float* x, const float* y, std::int64_t n);

  // Rotates the pairs of one head in place; cos and sin: [head_dim / 2].
  void (*rope)(float* head, const float* cos, const float* sin, std::int64_t head_dim, RopePairing pairing);

  // Rounds one position's keys and values, [n_kv_head][head_dim] each, into the cache.
  void (*store_kv)(const KvView& cache, std::int64_t position, const float* k, const float* v,
                   std::int64_t n_kv_head, std::int64_t head_dim);

  // The spans [span_begin, span_end) of the sums over positions. sums: [spans][rows][n_group][sums_stride];
  // those of a row that sees nothing of a span stay unset.
  void (*attention)(const KvView& cache, const AttentionQuery& query, std::int64_t span_begin,
                    std::int64_t span_end, float* sums, float* scratch);

  // The outputs from the sums of all spans from query.span_begin() on; changes the sums.
  void (*combine_spans)(const AttentionQuery& query, float* sums);
};

// The definition.
const KernelSet& reference_kernels();

// All sets that this machine can run, slowest first; the first is the reference.
std::span<const KernelSet* const> available_kernels();

// The fastest available set, or the one that the environment variable KVASIR_ISA names.
// Error(kInvalidArgument) if that is unknown or this machine lacks it.
const KernelSet& default_kernels();

}  // namespace kvasir::kernels

#endif  // KVASIR_KERNELS_KERNELS_H_
