#include <fmt/format.h>

#include <cmath>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "base/float_environment.h"
#include "base/tensor_type.h"
#include "kernels/packed_matrix.h"
#include "kvasir/error.h"
#include "kvasir/lab.h"

namespace kvasir {
namespace {

[[noreturn]] void refuse(const std::string& message) { throw Error(ErrorKind::kInvalidArgument, message); }

// Hands out a layer's tensors and sees to it that all of them are used.
class LayerWeights {
 public:
  explicit LayerWeights(const StateDict& state) : state_(state) {}

  RmsNorm norm(const std::string& name, const Config& config) {
    return {tensor(name, {size(config.d_model)}), config.rms_eps};
  }

  Linear linear(const std::string& name, std::int64_t out, std::int64_t in) {
    const std::vector<float>& values = tensor(name, {size(out), size(in)});
    auto packed = std::make_shared<kernels::PackedMatrix>(
        kernels::make_packed_matrix(TensorType::kF32, out, in, Activations::kDefault));
    const std::span<const std::byte> bytes = std::as_bytes(std::span(values));
    for (std::int64_t panel = 0; panel < packed->panels(); ++panel) {
      kernels::pack_panel(*packed, TensorType::kF32, bytes.data(), panel);
    }
    return Linear(std::move(packed));
  }

  Attention attention(const std::string& prefix, const Config& config, std::int32_t layer) {
    const std::int64_t q_size = std::int64_t{config.n_head} * config.head_dim;
    const std::int64_t kv_size = std::int64_t{config.n_kv_head} * config.head_dim;
    return {config,
            layer,
            linear(prefix + "q_proj.weight", q_size, config.d_model),
            linear(prefix + "k_proj.weight", kv_size, config.d_model),
            linear(prefix + "v_proj.weight", kv_size, config.d_model),
            linear(prefix + "o_proj.weight", config.d_model, q_size)};
  }

  void refuse_unused() const {
    for (const auto& [name, tensor] : state_) {
      if (!used_.contains(name))
        throw Error(ErrorKind::kFormat, fmt::format("tensor {} has no place in this layer", name));
    }
  }

 private:
  static std::uint64_t size(std::int64_t n) { return static_cast<std::uint64_t>(n); }

  const std::vector<float>& tensor(const std::string& name, const std::vector<std::uint64_t>& shape) {
    const auto found = state_.find(name);
    if (found == state_.end()) throw Error(ErrorKind::kFormat, fmt::format("tensor {} is missing", name));
    if (found->second.shape != shape) {
      throw Error(ErrorKind::kFormat,
                  fmt::format("tensor {} has shape [{}], expected [{}]", name,
                              fmt::join(found->second.shape, ", "), fmt::join(shape, ", ")));
    }
    used_.insert(name);
    return found->second.values;
  }

  const StateDict& state_;
  std::set<std::string> used_;
};

const Config& checked(const Config& config, std::int32_t layer) {
  check_config(config);
  if (layer < 0 || layer >= config.n_layer) {
    refuse(fmt::format("layer {} is not one of the config's {}", layer, config.n_layer));
  }
  return config;
}

Attention make_attention(const Config& config, std::int32_t layer, const StateDict& state) {
  checked(config, layer);
  LayerWeights weights(state);
  Attention attention = weights.attention("", config, layer);
  weights.refuse_unused();
  return attention;
}

Block make_block(const Config& config, std::int32_t layer, const StateDict& state) {
  checked(config, layer);
  LayerWeights weights(state);
  Block block(weights.norm("input_layernorm.weight", config), weights.attention("self_attn.", config, layer),
              weights.norm("post_attention_layernorm.weight", config),
              Mlp(weights.linear("mlp.gate_proj.weight", config.d_ff, config.d_model),
                  weights.linear("mlp.up_proj.weight", config.d_ff, config.d_model),
                  weights.linear("mlp.down_proj.weight", config.d_model, config.d_ff)));
  weights.refuse_unused();
  return block;
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
  const FloatEnvironment environment;
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
  run_layer(config_, x.size(), batch, cache, executor,
            [&](const ForwardPass& pass) { attention_.forward(pass, x.data(), out.data()); });
  return out;
}

LabBlock::LabBlock(const Config& config, std::int32_t layer, const StateDict& weights)
    : config_(config), block_(make_block(config, layer, weights)) {}

std::vector<float> LabBlock::forward(std::span<const float> x, std::int32_t batch, KvCache* cache,
                                     Executor& executor) const {
  std::vector<float> out(x.begin(), x.end());
  run_layer(config_, x.size(), batch, cache, executor,
            [&](const ForwardPass& pass) { block_.forward(pass, out.data(), config_.d_model); });
  return out;
}

std::vector<float> rms_norm(std::span<const float> x, std::span<const float> weight, float eps,
                            Executor& executor) {
  if (weight.empty() || x.size() % weight.size() != 0) {
    refuse(fmt::format("RMSNorm: {} numbers are no rows of {}", x.size(), weight.size()));
  }
  const FloatEnvironment environment;
  std::vector<float> y(x.size());
  RmsNorm({weight.begin(), weight.end()}, eps)
      .forward(executor, x.data(), static_cast<std::int64_t>(x.size() / weight.size()), y.data());
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
  const FloatEnvironment environment;
  const Rope rope(head_dim, theta, pairing);
  std::vector<float> y(x.begin(), x.end()), cos(static_cast<std::size_t>(head_dim / 2)), sin(cos.size());
  for (std::size_t t = 0; t < positions.size(); ++t) {
    if (positions[t] < 0) refuse(fmt::format("RoPE: position {} must not be negative", positions[t]));
    rope.angles(positions[t], cos.data(), sin.data());
    for (std::size_t at = t * static_cast<std::size_t>(head_dim); at < y.size(); at += row) {
      rope.rotate(executor, y.data() + at, 1, cos.data(), sin.data());
    }
  }
  return y;
}

}  // namespace kvasir
