// Single kernels on one thread, with every kernel set of this machine. docs/benchmarks.md tells how to use
// it.
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "base/tensor_type.h"
#include "kernels/kernels.h"
#include "kvasir/config.h"
#include "kvasir/kv_cache.h"

namespace kvasir::kernels {
namespace {

constexpr TensorType kTypes[] = {TensorType::kF32,  TensorType::kF16,  TensorType::kBF16, TensorType::kQ8_0,
                                 TensorType::kQ4_0, TensorType::kQ4_1, TensorType::kQ5_0, TensorType::kQ5_1,
                                 TensorType::kQ4_K, TensorType::kQ5_K, TensorType::kQ6_K};

struct Shape {
  std::int64_t k, n;
};
constexpr Shape kShapes[] = {{2048, 8192}, {576, 1536}, {1536, 576}};  // the last two are SmolLM2-135M's
constexpr std::int64_t kRows[] = {1, 2, 4, 8, 16, 64, 512};
constexpr std::int64_t kMostScalarRows = 4;  // the definition takes its time

std::vector<float> random_floats(std::int64_t count) {
  std::minstd_rand random(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<std::size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

// A rate of what one iteration does.
benchmark::Counter per_second(double of_one_iteration) {
  return {of_one_iteration, benchmark::Counter::kIsIterationInvariantRate, benchmark::Counter::OneK::kIs1000};
}

template <class Fn>
void add(const std::string& name, const Fn& fn) {
  benchmark::RegisterBenchmark(name.c_str(), fn);
}

// ---- Linear layers

// Copies of one matrix, more than the caches hold: each product reads weights that come from memory, as those
// of a model's layers do.
class Weights {
 public:
  Weights(TensorType type, const Shape& shape) : type_(type), shape_(shape) {
    constexpr std::size_t kBytes = std::size_t{256} << 20;
    PackedMatrix first = make();
    const std::vector<std::byte> stored = random_rows();
    for (std::int64_t panel = 0; panel < first.panels(); ++panel) {
      pack_panel(first, type, stored.data(), panel);
    }
    const std::size_t count = kBytes / first.nbytes() + 1;
    copies_.push_back(std::move(first));
    while (copies_.size() < count) {
      copies_.push_back(make());
      std::memcpy(copies_.back().data.get(), copies_.front().data.get(), copies_.front().nbytes());
    }
  }

  bool are(TensorType type, const Shape& shape) const {
    return type == type_ && shape.k == shape_.k && shape.n == shape_.n;
  }
  const PackedMatrix& next() { return copies_[next_++ % copies_.size()]; }

 private:
  PackedMatrix make() {
    return make_packed_matrix(type_, shape_.n, shape_.k, Activations::kDefault, memory_);
  }

  // Bytes 0x28 to 0x2f make small finite floats, scales and quants of every type.
  std::vector<std::byte> random_rows() const {
    const TensorTypeInfo& info = tensor_type_info(type_);
    std::minstd_rand random(1);
    std::vector<std::byte> bytes(static_cast<std::size_t>(shape_.n * shape_.k) / info.block_values *
                                 info.block_bytes);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(0x28U | (random() >> 8U & 7U));
    return bytes;
  }

  TensorType type_;
  Shape shape_;
  MemoryArena memory_;
  std::vector<PackedMatrix> copies_;
  std::size_t next_ = 0;
};

// Kept for the next benchmark of the same matrix.
Weights& weights_of(TensorType type, const Shape& shape) {
  static std::unique_ptr<Weights> weights;
  if (weights == nullptr || !weights->are(type, shape)) {
    weights.reset();  // before the next ones take memory
    weights = std::make_unique<Weights>(type, shape);
  }
  return *weights;
}

// Rows in every representation.
struct Inputs {
  Inputs(const KernelSet& set, std::int64_t rows, std::int64_t k_inputs)
      : k(k_inputs),
        floats(random_floats(rows * k)),
        pairs(static_cast<std::size_t>(rows * ((k + 1) / 2))),
        blocks(floats.size() / kQuantBlock) {
    for (std::int64_t row = 0; row < rows; ++row) {
      const float* x = floats.data() + row * k;
      set.round_bf16(x, k, pairs.data() + row * ((k + 1) / 2));
      set.quantize(x, k, blocks.data() + row * k / kQuantBlock);
    }
  }
  InputRows rows() const { return {k, floats.data(), pairs.data(), blocks.data()}; }

  std::int64_t k;
  std::vector<float> floats;
  std::vector<std::uint32_t> pairs;
  std::vector<QuantizedBlock> blocks;
};

void linear(benchmark::State& state, const KernelSet& set, TensorType type, const Shape& shape,
            std::int64_t rows) {
  Weights& weights = weights_of(type, shape);
  const Inputs inputs(set, rows, shape.k);
  std::vector<float> y(static_cast<std::size_t>(rows * shape.n));
  for (auto _ : state) {
    const PackedMatrix& w = weights.next();
    set.linear(w, 0, w.panels(), inputs.rows(), rows, y.data(), shape.n);
    benchmark::DoNotOptimize(y.data());
    benchmark::ClobberMemory();
  }
  state.counters["weight_bytes"] = per_second(static_cast<double>(weights.next().nbytes()));
  state.counters["operations"] = per_second(2.0 * static_cast<double>(rows * shape.k * shape.n));
}

void add_linear() {
  for (const TensorType type : kTypes) {
    const TensorTypeInfo& info = tensor_type_info(type);
    for (const Shape& shape : kShapes) {
      if (shape.k % static_cast<std::int64_t>(info.block_values) != 0) continue;
      for (const std::int64_t rows : kRows) {
        for (const KernelSet* set : available_kernels()) {
          if (set == &reference_kernels() && rows > kMostScalarRows) continue;
          add(fmt::format("linear/{}/{}x{}/rows:{}/{}", info.name, shape.k, shape.n, rows, set->name),
              [=](benchmark::State& state) { linear(state, *set, type, shape, rows); });
        }
      }
    }
  }
}

// ---- Attention

struct Heads {
  std::int64_t n_head, n_kv_head, head_dim;
};
constexpr Heads kHeads[] = {{32, 8, 64}, {9, 3, 64}};  // Llama-3.2-1B, SmolLM2-135M
constexpr std::int64_t kQueriesAtOnce = 48;            // rows times heads of one call, as in the model

// Layers enough to exceed the caches: each pass reads keys and values that come from memory.
KvCache filled_cache(const KernelSet& set, const Heads& heads, std::int64_t positions, KvType type) {
  constexpr std::int64_t kBytes = std::int64_t{256} << 20;
  const std::int64_t row = heads.n_kv_head * heads.head_dim;
  Config config;
  config.n_head = static_cast<std::int32_t>(heads.n_head);
  config.n_kv_head = static_cast<std::int32_t>(heads.n_kv_head);
  config.head_dim = static_cast<std::int32_t>(heads.head_dim);
  config.max_seq = static_cast<std::int32_t>(positions);
  config.n_layer = static_cast<std::int32_t>(
      kBytes / (2 * positions * row * static_cast<std::int64_t>(kv_type_bytes(type))) + 1);
  KvCache cache(config, 1, type);
  const std::vector<float> numbers = random_floats(row + positions);
  for (std::int32_t layer = 0; layer < config.n_layer; ++layer) {
    for (std::int64_t position = 0; position < positions; ++position) {
      const float* of_position = numbers.data() + position;
      set.store_kv(cache.view(layer, 0), position, of_position, of_position, heads.n_kv_head, heads.head_dim);
    }
  }
  return cache;
}

// `rows` rows from `position` on, all heads.
void attention(benchmark::State& state, const KernelSet& set, const Heads& heads, std::int64_t position,
               std::int64_t rows, KvType type) {
  KvCache cache = filled_cache(set, heads, position + rows, type);
  const std::size_t layer_bytes =
      2 * kv_type_bytes(type) *
      static_cast<std::size_t>((position + rows) * heads.n_kv_head * heads.head_dim);
  const auto layers = static_cast<std::int32_t>(cache.nbytes() / layer_bytes);
  const std::int64_t group = heads.n_head / heads.n_kv_head, stride = heads.n_head * heads.head_dim;
  const std::int64_t tile = std::min(rows, kQueriesAtOnce / group);
  const std::vector<float> q = random_floats(rows * stride);
  std::vector<float> out(q.size()), sums, scratch;
  std::int32_t layer = 0;
  for (auto _ : state) {
    const KvView view = cache.view(layer++ % layers, 0);
    for (std::int64_t row = 0; row < rows; row += tile) {
      for (std::int64_t kv_head = 0; kv_head < heads.n_kv_head; ++kv_head) {
        const std::int64_t offset = row * stride + kv_head * group * heads.head_dim;
        const AttentionQuery query = {q.data() + offset,
                                      out.data() + offset,
                                      stride,
                                      std::min(tile, rows - row),
                                      group,
                                      heads.head_dim,
                                      kv_head,
                                      0,
                                      position + row,
                                      0.125F,
                                      view.keys(0, (kv_head + 1) % heads.n_kv_head)};
        const std::int64_t spans = query.span_end() - query.span_begin();
        const auto size = static_cast<std::size_t>(spans * tile * group * sums_stride(heads.head_dim));
        sums.resize(std::max(sums.size(), size));
        scratch.resize(std::max(scratch.size(), attention_scratch(query)));
        set.attention(view, query, query.span_begin(), query.span_end(), sums.data(), scratch.data());
        set.combine_spans(query, sums.data());
      }
    }
    benchmark::DoNotOptimize(out.data());
    benchmark::ClobberMemory();
  }
  const double seen = static_cast<double>(rows) * static_cast<double>(2 * position + rows + 1) / 2;
  state.counters["operations"] = per_second(4 * seen * static_cast<double>(stride));
  if (rows == 1) state.counters["kv_bytes"] = per_second(static_cast<double>(layer_bytes));
}

void add_attention(const KernelSet& set) {
  constexpr std::int64_t kPrompt = 512;
  for (const Heads& heads : kHeads) {
    for (const auto& [type_name, type] : {std::pair("f16", KvType::kF16), std::pair("f32", KvType::kF32)}) {
      const auto add_at = [&, type = type, type_name = type_name](std::string_view name,
                                                                  std::int64_t position, std::int64_t rows) {
        add(fmt::format("{}/{}over{}x{}/{}/at:{}/{}", name, heads.n_head, heads.n_kv_head, heads.head_dim,
                        type_name, position, set.name),
            [=, &set](benchmark::State& state) { attention(state, set, heads, position, rows, type); });
      };
      for (const std::int64_t position : {511, 4095}) add_at("attention_decode", position, 1);
      if (&set == &reference_kernels()) continue;  // the definition takes its time
      for (const std::int64_t position : {0, 3584}) add_at("attention_prefill", position, kPrompt);
    }
  }
}

// ---- Between the layers

// Calls fn over and over; it handles `numbers` numbers.
template <class Fn>
void add_elementwise(std::string_view name, const KernelSet& set, std::int64_t numbers, const Fn& fn) {
  add(fmt::format("{}/{}/{}", name, numbers, set.name), [=](benchmark::State& state) {
    const std::vector<float> x = random_floats(numbers), w = random_floats(numbers);
    std::vector<float> y = x;
    for (auto _ : state) {
      fn(x.data(), w.data(), y.data());
      benchmark::DoNotOptimize(y.data());
      benchmark::ClobberMemory();
    }
    state.counters["numbers"] = per_second(static_cast<double>(numbers));
  });
}

void add_all_elementwise(const KernelSet& set) {
  constexpr std::int64_t kWidth = 2048, kFeedForward = 8192, kHeadDim = 64;
  add_elementwise("rms_norm", set, kWidth,
                  [&set](const float* x, const float* w, float* y) { set.rms_norm(x, w, 1e-5F, kWidth, y); });
  add_elementwise("swiglu", set, kFeedForward,
                  [&set](const float* x, const float* w, float* y) { set.swiglu(x, w, kFeedForward, y); });
  add_elementwise("add", set, kWidth,
                  [&set](const float* x, const float*, float* y) { set.add(y, x, kWidth); });
  for (const auto& [name, pairing] : {std::pair("rope_half_split", RopePairing::kHalfSplit),
                                      std::pair("rope_interleaved", RopePairing::kInterleaved)}) {
    const std::vector<float> cos(kHeadDim / 2, 0.6F), sin(kHeadDim / 2, 0.8F);
    const auto rotate = [=, &set, pairing = pairing](const float*, const float*, float* y) {
      set.rope(y, cos.data(), sin.data(), kHeadDim, pairing);
    };
    add_elementwise(name, set, kHeadDim, rotate);
  }
  add_elementwise("quantize", set, kWidth, [&set](const float* x, const float*, float*) {
    static QuantizedBlock blocks[kWidth / kQuantBlock];
    set.quantize(x, kWidth, blocks);
    benchmark::DoNotOptimize(&blocks);
  });
  add_elementwise("round_bf16", set, kWidth, [&set](const float* x, const float*, float*) {
    static std::uint32_t pairs[kWidth / 2];
    set.round_bf16(x, kWidth, pairs);
    benchmark::DoNotOptimize(&pairs);
  });
}

}  // namespace
}  // namespace kvasir::kernels

int main(int argc, char** argv) {
  kvasir::kernels::add_linear();
  for (const kvasir::kernels::KernelSet* set : kvasir::kernels::available_kernels()) {
    kvasir::kernels::add_attention(*set);
    kvasir::kernels::add_all_elementwise(*set);
  }
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  return benchmark::RunSpecifiedBenchmarks() > 0 ? 0 : 1;
}
