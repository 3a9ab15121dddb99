#include "kernels/faulty.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace kvasir::kernels {
namespace {

// Kernels are plain functions, so that what they are to do lies here.
struct Fault {
  const KernelSet* real = nullptr;
  KernelSet set{};
  std::vector<float> row;

  bool meets(const float* numbers, std::int64_t count) const {
    const std::size_t n = std::min(static_cast<std::size_t>(count), row.size());
    return std::memcmp(numbers, row.data(), n * sizeof(float)) == 0;
  }
};
Fault fault;

template <class T>
void flip(T* number, std::uint32_t bit = 1) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, number, sizeof(T));
  bits ^= bit;
  std::memcpy(number, &bits, sizeof(T));
}

void linear(const PackedMatrix& w, std::int64_t panel_begin, std::int64_t panel_end, const InputRows& x,
            std::int64_t rows, float* y, std::int64_t y_stride) {
  fault.real->linear(w, panel_begin, panel_end, x, rows, y, y_stride);
  for (std::int64_t row = 0; row < rows && panel_begin == 0; ++row) {
    if (fault.meets(y + row * y_stride, std::min(kPanel, w.n))) flip(y + row * y_stride);
  }
}

void quantize(const float* x, std::int64_t k, QuantizedBlock* blocks) {
  fault.real->quantize(x, k, blocks);
  if (fault.meets(x, k)) flip(&blocks->scale);
}

void round_bf16(const float* x, std::int64_t k, std::uint32_t* pairs) {
  fault.real->round_bf16(x, k, pairs);
  constexpr std::uint32_t kLowestOfUpperHalf = 1U << 16;
  if (fault.meets(x, k)) flip(pairs, kLowestOfUpperHalf);
}

void rms_norm(const float* x, const float* weight, float eps, std::int64_t n, float* y) {
  fault.real->rms_norm(x, weight, eps, n, y);
  if (fault.meets(y, n)) flip(y);
}

void swiglu(const float* gate, const float* up, std::int64_t n, float* out) {
  fault.real->swiglu(gate, up, n, out);
  if (fault.meets(out, n)) flip(out);
}

void geglu(const float* gate, const float* up, std::int64_t n, float* out) {
  fault.real->geglu(gate, up, n, out);
  if (fault.meets(out, n)) flip(out);
}

void add(float* x, const float* y, std::int64_t n) {
  fault.real->add(x, y, n);
  if (fault.meets(x, n)) flip(x);
}

void rope(float* head, const float* cos, const float* sin, std::int64_t head_dim, RopePairing pairing) {
  fault.real->rope(head, cos, sin, head_dim, pairing);
  if (fault.meets(head, head_dim)) flip(head);
}

void store_kv(const KvView& cache, std::int64_t position, const float* k, const float* v,
              std::int64_t n_kv_head, std::int64_t head_dim) {
  fault.real->store_kv(cache, position, k, v, n_kv_head, head_dim);
  if (!fault.meets(v, n_kv_head * head_dim)) return;
  std::byte* stored = cache.v + cache.v_index(position, 0, 0, head_dim) * kv_type_bytes(cache.type);
  if (cache.type == KvType::kF32) {
    flip(reinterpret_cast<std::uint32_t*>(stored));
  } else {
    flip(reinterpret_cast<std::uint16_t*>(stored));
  }
}

// Of the sums, that of the exponentials: it divides all outputs of a head.
void attention(const KvView& cache, const AttentionQuery& query, std::int64_t span_begin,
               std::int64_t span_end, float* sums, float* scratch) {
  fault.real->attention(cache, query, span_begin, span_end, sums, scratch);
  for (std::int64_t row = 0; row < query.rows && span_begin == query.span_begin(); ++row) {
    float* head = sums + row * query.n_group * sums_stride(query.head_dim);
    if (fault.meets(query.q + row * query.row_stride, query.n_group * query.head_dim)) {
      flip(head + sums_stride(query.head_dim) - 15);
    }
  }
}

void combine_spans(const AttentionQuery& query, float* sums) {
  fault.real->combine_spans(query, sums);
  for (std::int64_t row = 0; row < query.rows; ++row) {
    float* out = query.out + row * query.row_stride;
    if (fault.meets(out, query.n_group * query.head_dim)) flip(out);
  }
}

constexpr FaultyKernel kFaultyKernels[] = {
    {"linear", Operation::kFfnDown, [](KernelSet& set) { set.linear = linear; }},
    {"quantize", Operation::kFfnNorm, [](KernelSet& set) { set.quantize = quantize; }},
    {"round_bf16", Operation::kFfnNorm, [](KernelSet& set) { set.round_bf16 = round_bf16; }},
    {"rms_norm", Operation::kFfnNorm, [](KernelSet& set) { set.rms_norm = rms_norm; }},
    {"swiglu", Operation::kFfnActivation, [](KernelSet& set) { set.swiglu = swiglu; }},
    {"geglu", Operation::kFfnActivation, [](KernelSet& set) { set.geglu = geglu; }},
    {"add", Operation::kFfnResidual, [](KernelSet& set) { set.add = add; }},
    {"rope", Operation::kQuery, [](KernelSet& set) { set.rope = rope; }},
    {"store_kv", Operation::kValue, [](KernelSet& set) { set.store_kv = store_kv; }},
    {"attention", Operation::kQuery, [](KernelSet& set) { set.attention = attention; }},
    {"combine_spans", Operation::kAttention, [](KernelSet& set) { set.combine_spans = combine_spans; }},
};

}  // namespace

std::span<const FaultyKernel> faulty_kernels() { return kFaultyKernels; }

const KernelSet& with_fault(const KernelSet& real, const FaultyKernel& kernel, std::vector<float> row) {
  fault = {&real, real, std::move(row)};
  kernel.install(fault.set);
  return fault.set;
}

}  // namespace kvasir::kernels
