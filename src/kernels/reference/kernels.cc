// The definition of the arithmetic: every operation that reaches a logit, in its order, without tricks.
#include "kernels/kernels.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <vector>

#include "kernels/float_functions.h"
#include "kernels/half.h"

namespace kvasir::kernels {
namespace {

// ---- Elementary functions

float exp_f32(float x) {
  const float t = std::fma(x, kLog2E, kRoundMagic);
  const std::uint32_t n = std::bit_cast<std::uint32_t>(t) - kRoundMagicBits;  // two's complement
  const float n_float = t - kRoundMagic;
  float r = std::fma(n_float, -kLn2High, x);
  r = std::fma(n_float, -kLn2Low, r);
  float p = kExpCoefficients[0];
  for (int i = 1; i < 6; ++i) p = std::fma(p, r, kExpCoefficients[i]);
  p = std::fma(p, r, 1.0F);
  p = std::fma(p, r, 1.0F);
  // 2^n in two factors, so that n = 128 is reached without an infinite factor.
  const std::uint32_t half = static_cast<std::uint32_t>(static_cast<std::int32_t>(n) >> 1);
  const float scale1 = std::bit_cast<float>((half + 127) << 23);
  const float scale2 = std::bit_cast<float>((n - half + 127) << 23);
  const float result = p * scale1 * scale2;
  if (x < kExpUnderflow) return 0.0F;
  if (x > kExpOverflow) return std::numeric_limits<float>::infinity();
  return result;
}

// Sum of `count` lanes, a power of two: lane i takes lane i + count / 2, and so on down to one.
float tree_sum(float* lanes, int count) {
  for (int half = count / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  }
  return lanes[0];
}

// ---- Linear layers. Each returns one output; see docs/arithmetic.md, "Linear layers".

// Weights of one output: every 16th number from w.
float dot_floats(const float* w, const float* x, std::int64_t k) {
  float total = 0.0F;
  for (std::int64_t begin = 0; begin < k; begin += kSegment) {
    float sum = 0.0F;
    for (std::int64_t i = begin; i < std::min(begin + kSegment, k); ++i)
      sum = std::fma(x[i], w[i * kPanel], sum);
    total = begin == 0 ? sum : total + sum;
  }
  return total;
}

// Exact: `count` products of int8 fit an int32 by far.
std::int32_t dot_int8(const std::int8_t* w, const std::int8_t* x, std::int64_t count) {
  std::int32_t sum = 0;
  for (std::int64_t i = 0; i < count; ++i)
    sum += x[i] * w[i / kDotGroup * kPanel * kDotGroup + i % kDotGroup];
  return sum;
}

struct Output {  // of an integer layout: where its numbers lie
  const PackedMatrix* w;
  std::int64_t panel;
  std::int64_t lane;

  // The quants of inputs k.. (k a multiple of 4).
  const std::int8_t* quants(std::int64_t k) const {
    return w->quants.data() + (panel * w->k + k) * kPanel + lane * kDotGroup;
  }
  // Element of an array with one entry for each `group` inputs.
  template <class T>
  T at(const AlignedBuffer<T>& array, std::int64_t k, std::int64_t group) const {
    return array[static_cast<std::size_t>((panel * w->k + k) / group * kPanel + lane)];
  }
};

float dot_blocks(const Output& o, const InputRows& x, std::int64_t row) {
  const std::int64_t k = o.w->k;
  const bool with_min = o.w->layout == WeightLayout::kInt8Min;
  float total = 0.0F;
  for (std::int64_t begin = 0; begin < k; begin += kSegment) {
    float sum = 0.0F;
    for (std::int64_t i = begin; i < std::min(begin + kSegment, k); i += kQuantBlock) {
      const std::int64_t block = (row * k + i) / kQuantBlock;
      const auto dot = static_cast<float>(dot_int8(o.quants(i), x.quants + row * k + i, kQuantBlock));
      sum = std::fma(dot, x.scales[block] * o.at(o.w->scales, i, kQuantBlock), sum);
      if (with_min) {
        const auto x_sum = static_cast<float>(x.sums[2 * block] + x.sums[2 * block + 1]);
        sum = std::fma(x_sum, x.scales[block] * o.at(o.w->mins, i, kQuantBlock), sum);
      }
    }
    total = begin == 0 ? sum : total + sum;
  }
  return total;
}

float dot_super_blocks(const Output& o, const InputRows& x, std::int64_t row) {
  const std::int64_t k = o.w->k;
  const bool with_min = o.w->mins.size() > 0;
  float total = 0.0F;
  for (std::int64_t begin = 0; begin < k; begin += kSegment) {
    float sum = 0.0F;
    float min_sum = 0.0F;
    for (std::int64_t i = begin; i < begin + kSegment; i += kQuantBlock) {
      const std::int64_t block = (row * k + i) / kQuantBlock;
      std::int32_t dot = 0;  // below 2^24, so exact as a float
      for (std::int64_t j = i; j < i + kQuantBlock; j += kSubBlock) {
        dot += o.at(o.w->sub_scales, j, kSubBlock) * dot_int8(o.quants(j), x.quants + row * k + j, kSubBlock);
      }
      sum = std::fma(static_cast<float>(dot), x.scales[block], sum);
      if (with_min) {
        const auto min = static_cast<float>(o.at(o.w->sub_mins, i, kQuantBlock));
        const auto x_sum = static_cast<float>(x.sums[2 * block] + x.sums[2 * block + 1]);
        min_sum = std::fma(min, x.scales[block] * x_sum, min_sum);
      }
    }
    total = std::fma(o.at(o.w->scales, begin, kSegment), sum, total);
    if (with_min) total = std::fma(-o.at(o.w->mins, begin, kSegment), min_sum, total);
  }
  return total;
}

void linear(const PackedMatrix& w, std::int64_t panel_begin, std::int64_t panel_end, const InputRows& x,
            std::int64_t rows, float* y, std::int64_t y_stride) {
  for (std::int64_t n = panel_begin * kPanel; n < std::min(panel_end * kPanel, w.n); ++n) {
    const Output output{&w, n / kPanel, n % kPanel};
    for (std::int64_t row = 0; row < rows; ++row) {
      float& out = y[row * y_stride + n];
      switch (w.layout) {
        case WeightLayout::kF32:
        case WeightLayout::kBF16:
          out = dot_floats(w.floats.data() + output.panel * w.k * kPanel + output.lane, x.floats + row * w.k,
                           w.k);
          break;
        case WeightLayout::kInt8:
        case WeightLayout::kInt8Min:
          out = dot_blocks(output, x, row);
          break;
        case WeightLayout::kSuperBlock:
          out = dot_super_blocks(output, x, row);
          break;
      }
    }
  }
}

// ---- Inputs of linear layers

void quantize(const float* x, std::int64_t k, std::int8_t* quants, float* scales, std::int32_t* sums) {
  for (std::int64_t begin = 0; begin < k; begin += kQuantBlock) {
    // As integers, magnitudes order like the floats, with infinity and NaN above all numbers: none is
    // overlooked.
    std::uint32_t absmax_bits = 0;
    for (std::int64_t i = begin; i < begin + kQuantBlock; ++i) {
      absmax_bits = std::max(absmax_bits, std::bit_cast<std::uint32_t>(x[i]) & 0x7fffffff);
    }
    const auto absmax = std::bit_cast<float>(absmax_bits);
    const bool zero = absmax < 0x1p-100F;
    const bool finite = absmax_bits < 0x7f800000;
    const float scale = zero ? 0.0F : absmax / 127.0F;
    std::int32_t* block_sums = sums + begin / kSubBlock;
    block_sums[0] = block_sums[1] = 0;
    for (std::int64_t i = begin; i < begin + kQuantBlock; ++i) {
      std::int32_t quant = 0;
      if (!zero && finite) {
        quant = static_cast<std::int32_t>(std::bit_cast<std::uint32_t>(x[i] / scale + kRoundMagic) -
                                          kRoundMagicBits);
      }
      quants[i] = static_cast<std::int8_t>(quant);
      block_sums[(i - begin) / kSubBlock] += quant;
    }
    scales[begin / kQuantBlock] = scale;
  }
}

void round_bf16(const float* x, std::int64_t k, float* y) {
  for (std::int64_t i = 0; i < k; ++i) {
    const float rounded = bf16_to_f32(f32_to_bf16(x[i]));
    y[i] = std::fabs(rounded) < 0x1p-48F ? 0.0F : rounded;
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
      store(cache.type, cache.k, cache.k_index(position, head, dim, head_dim), k[head * head_dim + dim]);
      store(cache.type, cache.v, cache.v_index(position, head, dim, head_dim), v[head * head_dim + dim]);
    }
  }
}

// The part of the softmax sum that the positions [begin, end) of one span give.
struct SpanSum {
  float max;               // of the scores
  float sum;               // of exp(score - max)
  std::vector<float> out;  // [head_dim], sum of exp(score - max) * value
};

SpanSum attend_span(const KvView& cache, const AttentionQuery& query, const float* q, std::int64_t begin,
                    std::int64_t end) {
  const std::int64_t head_dim = query.head_dim;
  std::vector<float> weights(static_cast<std::size_t>(end - begin));
  SpanSum result{-std::numeric_limits<float>::infinity(), 0.0F,
                 std::vector<float>(static_cast<std::size_t>(head_dim))};
  for (std::int64_t p = begin; p < end; ++p) {
    float dot = 0.0F;
    for (std::int64_t dim = 0; dim < head_dim; ++dim) {
      dot =
          std::fma(q[dim], load_kv(cache.type, cache.k, cache.k_index(p, query.kv_head, dim, head_dim)), dot);
    }
    const float score = dot * query.scale;
    weights[static_cast<std::size_t>(p - begin)] = score;
    result.max = std::max(result.max, score);
  }
  float lanes[kCacheBlock] = {};
  for (std::int64_t p = begin; p < end; ++p) {
    float& weight = weights[static_cast<std::size_t>(p - begin)];
    weight = exp_f32(weight - result.max);
    lanes[p % kCacheBlock] += weight;
  }
  result.sum = tree_sum(lanes, kCacheBlock);
  for (std::int64_t dim = 0; dim < head_dim; ++dim) {
    float out = 0.0F;
    for (std::int64_t p = begin; p < end; ++p) {
      const float value = load_kv(cache.type, cache.v, cache.v_index(p, query.kv_head, dim, head_dim));
      out = std::fma(weights[static_cast<std::size_t>(p - begin)], value, out);
    }
    result.out[static_cast<std::size_t>(dim)] = out;
  }
  return result;
}

void attention(const KvView& cache, const AttentionQuery& query, float* /*scratch*/) {
  for (std::int64_t g = 0; g < query.n_group; ++g) {
    const float* q = query.q + g * query.head_dim;
    std::vector<SpanSum> spans;
    float max = -std::numeric_limits<float>::infinity();
    for (std::int64_t begin = query.first_position; begin <= query.last_position;) {
      const std::int64_t end = std::min((begin / kSpan + 1) * kSpan, query.last_position + 1);
      spans.push_back(attend_span(cache, query, q, begin, end));
      max = std::max(max, spans.back().max);
      begin = end;
    }
    float sum = 0.0F;
    for (SpanSum& span : spans) {
      span.max = exp_f32(span.max - max);  // from here on the span's weight
      sum = std::fma(span.max, span.sum, sum);
    }
    for (std::int64_t dim = 0; dim < query.head_dim; ++dim) {
      float out = 0.0F;
      for (const SpanSum& span : spans)
        out = std::fma(span.max, span.out[static_cast<std::size_t>(dim)], out);
      query.out[g * query.head_dim + dim] = out / sum;
    }
  }
}

}  // namespace

float load_kv(KvType type, const std::byte* base, std::size_t index) {
  if (type == KvType::kF32) return reinterpret_cast<const float*>(base)[index];
  const std::uint16_t bits = reinterpret_cast<const std::uint16_t*>(base)[index];
  return type == KvType::kF16 ? f16_to_f32(bits) : bf16_to_f32(bits);
}

std::size_t attention_scratch(std::int64_t n_group, std::int64_t head_dim, std::int64_t positions) {
  const std::int64_t spans = positions / kSpan + 2;  // a window may begin and end inside of a span
  return static_cast<std::size_t>(n_group * (kSpan + kCacheBlock + spans * (head_dim + 2 + 16)));
}

const KernelSet& reference_kernels() {
  static constexpr KernelSet kSet = {"scalar", linear, quantize, round_bf16, rms_norm,
                                     swiglu,   add,    rope,     store_kv,   attention};
  return kSet;
}

}  // namespace kvasir::kernels
