#include <fmt/format.h>

#include <cmath>
#include <cstddef>
#include <functional>
#include <optional>
#include <utility>

#include "base/float_environment.h"
#include "engine/lab_weights.h"
#include "kvasir/error.h"
#include "kvasir/lab.h"
#include "model/weight_loader.h"

namespace kvasir {
namespace {

[[noreturn]] void refuse(const std::string& message) { throw Error(ErrorKind::kInvalidArgument, message); }

const Config& checked(const Config& config, std::int32_t layer) {
  check_config(config);
  if (layer < 0 || layer >= config.n_layer) {
    refuse(fmt::format("layer {} is not one of the config's {}", layer, config.n_layer));
  }
  return config;
}

// build(loader) makes a layer of all the tensors.
template <class Build>
auto load_layer(const StateDict& state, Build build) {
  const MemoryWeights weights = memory_weights(state);
  Executor executor(1);
  WeightLoader loader(weights, Activations::kDefault, executor);
  auto layer = with_defined_floats([&] { return build(loader); });
  loader.refuse_unused();
  return layer;
}

Attention make_attention(const Config& config, std::int32_t layer, const StateDict& state) {
  checked(config, layer);
  return load_layer(state, [&](WeightLoader& loader) { return loader.attention("", config, layer); });
}

Block make_block(const Config& config, std::int32_t layer, const StateDict& state) {
  checked(config, layer);
  return load_layer(state, [&](WeightLoader& loader) { return loader.block("", config, layer); });
}

// Calls `layer` with the pass that x [batch][t][d_model] makes at the cache's pos.
void run_layer(const Config& config, std::size_t numbers, std::int32_t batch, KvCache* cache,
               Executor& executor, const std::function<void(const ForwardPass&)>& layer) {
  const auto d_model = static_cast<std::size_t>(config.d_model);
  if (batch < 1 || numbers == 0 || numbers % (static_cast<std::size_t>(batch) * d_model) != 0) {
    refuse(fmt::format("{} numbers are no batch of {} equally long sequences of d_model {}", numbers, batch,
                       d_model));
  }
  const auto t = static_cast<std::int64_t>(numbers / (static_cast<std::size_t>(batch) * d_model));
  std::optional<KvCache> own;
  if (cache == nullptr) cache = &own.emplace(config, batch);
  if (!cache->fits(config) || cache->batch() != batch) {
    refuse(fmt::format("a batch of {} with a cache for {}, or a cache for a model of another shape", batch,
                       cache->batch()));
  }
  const std::int64_t half = config.head_dim / 2;
  const Rope rope(config.head_dim, config.rope_theta, config.rope_pairing);
  std::vector<Row> rows;
  std::vector<float> cos(static_cast<std::size_t>(batch * t * half)), sin(cos.size());
  for (std::int32_t b = 0; b < batch; ++b) {
    if (cache->length(b) + t > cache->max_seq()) {
      throw Error(ErrorKind::kCapacity, fmt::format("KV cache overflow: {} positions, but max_seq is {}",
                                                    cache->length(b) + t, cache->max_seq()));
    }
    for (std::int64_t i = 0; i < t; ++i) {
      const auto at = rows.size() * static_cast<std::size_t>(half);
      rows.push_back({b, cache->length(b) + i});
      rope.angles(rows.back().position, cos.data() + at, sin.data() + at);
    }
  }
  layer({executor, *cache, rows, cos.data(), sin.data()});
}

}  // namespace

LabAttention::LabAttention(const Config& config, std::int32_t layer, const StateDict& weights)
    : config_(config), attention_(make_attention(config, layer, weights)) {}

std::vector<float> LabAttention::forward(std::span<const float> x, std::int32_t batch, KvCache* cache,
                                         Executor& executor) const {
  std::vector<float> out(x.size());
  with_defined_floats([&] {
    run_layer(config_, x.size(), batch, cache, executor,
              [&](const ForwardPass& pass) { attention_.forward(pass, x.data(), out.data()); });
  });
  return out;
}

LabBlock::LabBlock(const Config& config, std::int32_t layer, const StateDict& weights)
    : config_(config), block_(make_block(config, layer, weights)) {}

std::vector<float> LabBlock::forward(std::span<const float> x, std::int32_t batch, KvCache* cache,
                                     Executor& executor) const {
  std::vector<float> out(x.begin(), x.end());
  with_defined_floats([&] {
    run_layer(config_, x.size(), batch, cache, executor,
              [&](const ForwardPass& pass) { block_.forward(pass, out.data(), config_.d_model); });
  });
  return out;
}

std::vector<float> rms_norm(std::span<const float> x, std::span<const float> weight, float eps,
                            Executor& executor) {
  if (weight.empty() || x.size() % weight.size() != 0) {
    refuse(fmt::format("RMSNorm: {} numbers are no rows of {}", x.size(), weight.size()));
  }
  std::vector<float> y(x.size());
  with_defined_floats([&] {
    RmsNorm({weight.begin(), weight.end()}, eps)
        .forward(executor, x.data(), static_cast<std::int64_t>(x.size() / weight.size()), y.data());
  });
  return y;
}

std::vector<float> apply_rope(std::span<const float> x, std::span<const std::int64_t> positions,
                              std::int64_t head_dim, double theta, RopePairing pairing, Executor& executor) {
  if (head_dim < 2 || head_dim % 2 != 0)
    refuse(fmt::format("RoPE rotates pairs of numbers, head_dim is {}", head_dim));
  if (!(theta > 0.0) || !std::isfinite(theta)) refuse(fmt::format("RoPE: theta {} must be positive", theta));
  const std::size_t row = positions.size() * static_cast<std::size_t>(head_dim);
  if (row == 0 || x.size() % row != 0) {
    refuse(fmt::format("RoPE: {} numbers are no rows of {} positions x head_dim {}", x.size(),
                       positions.size(), head_dim));
  }
  for (const std::int64_t position : positions) {
    if (position < 0) refuse(fmt::format("RoPE: position {} must not be negative", position));
  }
  std::vector<float> y(x.begin(), x.end()), cos(static_cast<std::size_t>(head_dim / 2)), sin(cos.size());
  with_defined_floats([&] {
    const Rope rope(head_dim, theta, pairing);
    for (std::size_t t = 0; t < positions.size(); ++t) {
      rope.angles(positions[t], cos.data(), sin.data());
      for (std::size_t at = t * static_cast<std::size_t>(head_dim); at < y.size(); at += row) {
        rope.rotate(executor, y.data() + at, 1, cos.data(), sin.data());
      }
    }
  });
  return y;
}

}  // namespace kvasir
