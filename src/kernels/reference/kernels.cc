// The definition of the arithmetic: every operation that reaches a logit, in its order, without tricks.
#include "kernels/kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "kernels/float_functions.h"
#include "kernels/half.h"

namespace kvasir::kernels {
namespace {

// Sum of `count` lanes, a power of two: lane i takes lane i + count / 2, and so on down to one.
float tree_sum(float* lanes, int count) {
  for (int half = count / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

// ---- Linear layers. Each dot product gives one output; see docs/arithmetic.md, "Linear layers".

// Exact: so few products of int8 fit an int32 by far.
std::int32_t dot_int8(const std::int8_t* w, const std::int8_t* x, std::int64_t count) {
  std::int32_t sum = 0;
  for (std::int64_t i = 0; i < count; ++i) sum += std::int32_t{w[i]} * x[i];
  return sum;
}

// Blocks of 32 inputs.
float dot_blocks(std::span<const QuantBlock> w, bool with_min, const QuantizedBlock* x) {
  const std::int64_t blocks = std::ssize(w), per_segment = kSegment / kQuantBlock;
  float total = 0.0F;
  for (std::int64_t begin = 0; begin < blocks; begin += per_segment) {
    float sum = 0.0F;
    for (std::int64_t b = begin; b < std::min(begin + per_segment, blocks); ++b) {
      const QuantBlock& block = w[static_cast<std::size_t>(b)];
      const std::int32_t dot = dot_int8(block.quants, x[b].quants, kQuantBlock);
      sum = std::fma(static_cast<float>(dot), x[b].scale * block.d, sum);
      if (with_min) sum = std::fma(static_cast<float>(x[b].sum), x[b].scale * block.dmin, sum);
    }
    total = begin == 0 ? sum : total + sum;
  }
  return total;
}

// Super-blocks of 256 inputs.
float dot_super_blocks(std::span<const QuantBlock> w, bool with_min, const QuantizedBlock* x) {
  float total = 0.0F;
  for (const QuantBlock& super : w) {
    float sum = 0.0F;
    float min_sum = 0.0F;
    for (std::int64_t b = 0; b < kSegment / kQuantBlock; ++b, ++x) {
      std::int32_t dot = 0;  // below 2^24, so exact as a float
      for (std::int64_t s = 2 * b; s < 2 * b + 2; ++s) {
        const std::int8_t* inputs = x->quants + (s - 2 * b) * kSubBlock;
        dot += super.sub_scales[s] * dot_int8(super.quants + s * kSubBlock, inputs, kSubBlock);
      }
      sum = std::fma(static_cast<float>(dot), x->scale, sum);
      if (with_min) min_sum = std::fma(static_cast<float>(super.sub_mins[b]), x->scaled_sum, min_sum);
    }
    total = std::fma(super.d, sum, total);
    if (with_min) total = std::fma(-super.dmin, min_sum, total);
  }
  return total;
}

// Input i of one row.
[[gnu::always_inline]] inline float read_input(TensorType type, const InputRows& row, std::int64_t i) {
  if (type != TensorType::kBF16) return row.floats[i];
  return bf16_of_pair(row.pairs[i / 2], i);
}

[[gnu::always_inline]] inline void linear_floats(const PackedMatrix& w, std::int64_t panel_begin,
                                                 std::int64_t panel_end, const InputRows& x,
                                                 std::int64_t rows, float* y, std::int64_t y_stride) {
  for (std::int64_t panel = panel_begin; panel < panel_end; ++panel) {
    for (std::int64_t row = 0; row < rows; ++row) {
      const InputRows input = x.from(row);
      float totals[kPanel];
      for (std::int64_t segment = 0; segment < w.segments(); ++segment) {
        float sums[kPanel] = {};
        for (std::int64_t i = 0; i < w.segment_inputs(segment); ++i) {
          const float xi = read_input(w.type, input, segment * kSegment + i);
          float column[kPanel];
          for (std::int64_t lane = 0; lane < kPanel; ++lane) {
            column[lane] = packed_float(w.type, w.at(panel, segment), i, lane);
          }
          for (std::int64_t lane = 0; lane < kPanel; ++lane) {
            sums[lane] = std::fma(xi, column[lane], sums[lane]);
          }
        }
        for (std::int64_t lane = 0; lane < kPanel; ++lane) {
          totals[lane] = segment == 0 ? sums[lane] : totals[lane] + sums[lane];
        }
      }
      const std::int64_t count = std::min(kPanel, w.n - panel * kPanel);
      std::copy_n(totals, count, y + row * y_stride + panel * kPanel);
    }
  }
}

#if defined(__x86_64__)
// The same with the processor's fma instead of the C library's: std::fma has one result either way.
[[gnu::target("fma")]] void linear_floats_fma(const PackedMatrix& w, std::int64_t panel_begin,
                                              std::int64_t panel_end, const InputRows& x, std::int64_t rows,
                                              float* y, std::int64_t y_stride) {
  linear_floats(w, panel_begin, panel_end, x, rows, y, y_stride);
}
#endif

void linear_quantized(const PackedMatrix& w, std::int64_t begin, std::int64_t end, const InputRows& x,
                      std::int64_t rows, float* y, std::int64_t y_stride) {
  const auto block_values = static_cast<std::int64_t>(tensor_type_info(w.type).block_values);
  const bool with_min = quant_format(w.type).mins;
  std::vector<QuantBlock> weights(static_cast<std::size_t>(w.k / block_values));
  for (std::int64_t n = begin; n < end; ++n) {
    for (std::size_t b = 0; b < weights.size(); ++b) {
      unpack_packed_block(w, n, static_cast<std::int64_t>(b), weights[b]);
    }
    for (std::int64_t row = 0; row < rows; ++row) {
      const QuantizedBlock* in = x.from(row).blocks;
      y[row * y_stride + n] = block_values == kSegment ? dot_super_blocks(weights, with_min, in)
                                                       : dot_blocks(weights, with_min, in);
    }
  }
}

void linear(const PackedMatrix& w, std::int64_t panel_begin, std::int64_t panel_end, const InputRows& x,
            std::int64_t rows, float* y, std::int64_t y_stride) {
  if (input_kind(w.type) == InputKind::kInt8) {
    linear_quantized(w, panel_begin * kPanel, std::min(panel_end * kPanel, w.n), x, rows, y, y_stride);
    return;
  }
#if defined(__x86_64__)
  static const bool has_fma = __builtin_cpu_supports("fma");
  if (has_fma) return linear_floats_fma(w, panel_begin, panel_end, x, rows, y, y_stride);
#endif
  linear_floats(w, panel_begin, panel_end, x, rows, y, y_stride);
}

// ---- Inputs of linear layers

void quantize(const float* x, std::int64_t k, QuantizedBlock* blocks) {
  for (std::int64_t begin = 0; begin < k; begin += kQuantBlock, x += kQuantBlock, ++blocks) {
    // As integers, magnitudes order like the floats, with infinity and NaN above all numbers: none is
    // overlooked.
    std::uint32_t absmax_bits = 0;
    for (std::int64_t i = 0; i < kQuantBlock; ++i) {
      absmax_bits = std::max(absmax_bits, std::bit_cast<std::uint32_t>(x[i]) & 0x7fffffff);
    }
    const auto absmax = std::bit_cast<float>(absmax_bits);
    const bool zero = absmax < 0x1p-100F;
    const bool finite = absmax_bits < 0x7f800000;
    *blocks = {};
    blocks->scale = zero ? 0.0F : absmax / 127.0F;
    for (std::int64_t i = 0; i < kQuantBlock && !zero && finite; ++i) {
      const auto quant = static_cast<std::int32_t>(
          std::bit_cast<std::uint32_t>(x[i] / blocks->scale + kRoundMagic) - kRoundMagicBits);
      blocks->quants[i] = static_cast<std::int8_t>(quant);
      blocks->sum += quant;
      if (i < kSubBlock) blocks->first_half_sum += quant;
    }
    blocks->scaled_sum = blocks->scale * static_cast<float>(blocks->sum);
  }
}

std::uint32_t rounded_bf16(float x) {
  const std::uint16_t rounded = f32_to_bf16(x);
  return std::fabs(bf16_to_f32(rounded)) < 0x1p-48F ? 0U : rounded;
}

void round_bf16(const float* x, std::int64_t k, std::uint32_t* pairs) {
  for (std::int64_t i = 0; i < k; i += 2) {
    pairs[i / 2] = rounded_bf16(x[i]) << 16 | (i + 1 < k ? rounded_bf16(x[i + 1]) : 0U);
  }
}

// ---- Between the linear layers

void rms_norm(const float* x, const float* weight, float eps, std::int64_t n, float* y) {
  float lanes[64] = {};
  for (std::int64_t i = 0; i < n; ++i) lanes[i % 64] = std::fma(x[i], x[i], lanes[i % 64]);
  const float mean = tree_sum(lanes, 64) / static_cast<float>(n);
  const float scale = 1.0F / std::sqrt(mean + eps);
  for (std::int64_t i = 0; i < n; ++i) y[i] = (x[i] * scale) * weight[i];
}

void swiglu(const float* gate, const float* up, std::int64_t n, float* out) {
  for (std::int64_t i = 0; i < n; ++i) {
    const float silu = gate[i] / (1.0F + exp_f32(-gate[i]));
    out[i] = silu * up[i];
  }
}

void geglu(const float* gate, const float* up, std::int64_t n, float* out) {
  for (std::int64_t i = 0; i < n; ++i) {
    const float g = gate[i];
    const float exponent = g * std::fma(g * g, kGeluCubic, kGeluLinear);
    out[i] = g / (1.0F + exp_f32(-exponent)) * up[i];
  }
}

void add(float* x, const float* y, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) x[i] += y[i];
}

void rope(float* head, const float* cos, const float* sin, std::int64_t head_dim, RopePairing pairing) {
  for (std::int64_t i = 0; i < head_dim / 2; ++i) {
    float& a = pairing == RopePairing::kHalfSplit ? head[i] : head[2 * i];
    float& b = pairing == RopePairing::kHalfSplit ? head[i + head_dim / 2] : head[2 * i + 1];
    const float rotated_a = std::fma(a, cos[i], -(b * sin[i]));
    const float rotated_b = std::fma(b, cos[i], a * sin[i]);
    a = rotated_a;
    b = rotated_b;
  }
}

// ---- Cache and attention

void store(KvType type, std::byte* base, std::size_t index, float value) {
  if (type == KvType::kF32) {
    reinterpret_cast<float*>(base)[index] = value;
  } else {
    reinterpret_cast<std::uint16_t*>(base)[index] =
        type == KvType::kF16 ? f32_to_f16(value) : f32_to_bf16(value);
  }
}

void store_kv(const KvView& cache, std::int64_t position, const float* k, const float* v,
              std::int64_t n_kv_head, std::int64_t head_dim) {
  for (std::int64_t head = 0; head < n_kv_head; ++head) {
    for (std::int64_t dim = 0; dim < head_dim; ++dim) {
      store(cache.type, cache.k, cache.k_index(position, head, dim), k[head * head_dim + dim]);
      store(cache.type, cache.v, cache.v_index(position, head, dim, head_dim), v[head * head_dim + dim]);
    }
  }
}

// What one query has of the positions [begin, end) of one span; see sums_stride.
void attend_span(const KvView& cache, const AttentionQuery& query, const float* q, std::int64_t begin,
                 std::int64_t end, float* result) {
  const std::int64_t head_dim = query.head_dim;
  std::vector<float> weights(static_cast<std::size_t>(end - begin));
  float max = -std::numeric_limits<float>::infinity();
  for (std::int64_t p = begin; p < end; ++p) {
    float dot = 0.0F;
    for (std::int64_t dim = 0; dim < head_dim; ++dim) {
      dot = std::fma(q[dim], load_kv(cache.type, cache.k, cache.k_index(p, query.kv_head, dim)), dot);
    }
    const float score = dot * query.scale;
    weights[static_cast<std::size_t>(p - begin)] = score;
    max = std::max(max, score);
  }
  float lanes[kCacheBlock] = {};
  for (std::int64_t p = begin; p < end; ++p) {
    float& weight = weights[static_cast<std::size_t>(p - begin)];
    weight = exp_f32(weight - max);
    lanes[p % kCacheBlock] += weight;
  }
  for (std::int64_t dim = 0; dim < head_dim; ++dim) {
    float out = 0.0F;
    for (std::int64_t p = begin; p < end; ++p) {
      const float value = load_kv(cache.type, cache.v, cache.v_index(p, query.kv_head, dim, head_dim));
      out = std::fma(weights[static_cast<std::size_t>(p - begin)], value, out);
    }
    result[dim] = out;
  }
  float* max_and_sum = result + sums_stride(head_dim) - 16;
  max_and_sum[0] = max;
  max_and_sum[1] = tree_sum(lanes, kCacheBlock);
}

// Calls fn(row, g, the index of row and head) for every query.
template <class Fn>
void for_each_query(const AttentionQuery& query, Fn fn) {
  for (std::int64_t row = 0; row < query.rows; ++row) {
    for (std::int64_t g = 0; g < query.n_group; ++g) fn(row, g, row * query.n_group + g);
  }
}

void attention(const KvView& cache, const AttentionQuery& query, std::int64_t span_begin,
               std::int64_t span_end, float* sums, float* /*scratch*/) {
  const std::int64_t stride = sums_stride(query.head_dim), queries = query.rows * query.n_group;
  for (std::int64_t span = span_begin; span < span_end; ++span, sums += queries * stride) {
    for_each_query(query, [&](std::int64_t row, std::int64_t g, std::int64_t index) {
      const std::int64_t begin = std::max(span * kSpan, query.first_position);
      const std::int64_t end = std::min((span + 1) * kSpan, query.position + row + 1);
      if (begin >= end) return;
      attend_span(cache, query, query.q + row * query.row_stride + g * query.head_dim, begin, end,
                  sums + index * stride);
    });
  }
}

void combine_spans(const AttentionQuery& query, float* sums) {
  const std::int64_t stride = sums_stride(query.head_dim), queries = query.rows * query.n_group;
  for_each_query(query, [&](std::int64_t row, std::int64_t g, std::int64_t index) {
    const std::int64_t spans = (query.position + row) / kSpan - query.span_begin() + 1;
    const auto values = [&](std::int64_t s) { return sums + (s * queries + index) * stride; };
    const auto max_and_sum = [&](std::int64_t s) { return values(s) + stride - 16; };
    float max = -std::numeric_limits<float>::infinity();
    for (std::int64_t s = 0; s < spans; ++s) max = std::max(max, max_and_sum(s)[0]);
    float sum = 0.0F;
    std::vector<float> weights;
    for (std::int64_t s = 0; s < spans; ++s) {
      weights.push_back(exp_f32(max_and_sum(s)[0] - max));
      sum = std::fma(weights.back(), max_and_sum(s)[1], sum);
    }
    for (std::int64_t dim = 0; dim < query.head_dim; ++dim) {
      float out = 0.0F;
      for (std::int64_t s = 0; s < spans; ++s) {
        out = std::fma(weights[static_cast<std::size_t>(s)], values(s)[dim], out);
      }
      query.out[row * query.row_stride + g * query.head_dim + dim] = out / sum;
    }
  });
}

}  // namespace

float load_kv(KvType type, const std::byte* base, std::size_t index) {
  if (type == KvType::kF32) return reinterpret_cast<const float*>(base)[index];
  const std::uint16_t bits = reinterpret_cast<const std::uint16_t*>(base)[index];
  return type == KvType::kF16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

std::size_t attention_scratch(const AttentionQuery& query) {
  // Scores, then the keys or values of 64 positions.
  return static_cast<std::size_t>(query.rows * query.n_group * kSpan + 64 * sums_stride(query.head_dim));
}

const KernelSet& reference_kernels() {
  static constexpr KernelSet kSet = {.name = "scalar",
                                     .linear = linear,
                                     .quantize = quantize,
                                     .round_bf16 = round_bf16,
                                     .rms_norm = rms_norm,
                                     .swiglu = swiglu,
                                     .geglu = geglu,
                                     .add = add,
                                     .rope = rope,
                                     .store_kv = store_kv,
                                     .attention = attention,
                                     .combine_spans = combine_spans};
  return kSet;
}

}  // namespace kvasir::kernels
