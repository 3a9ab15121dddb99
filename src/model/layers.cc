#include "kvasir/layers.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/elementary.h"
#include "base/thread_pool.h"
#include "kernels/kernels.h"
#include "model/linear_inputs.h"

namespace kvasir {
namespace {

// Weights that one thread takes at a time: large enough that taking costs nothing, small enough that a thread
// which is held up delays little.
constexpr std::size_t kPieceBytes = 128 * 1024;

std::size_t elements(std::int64_t rows, std::int64_t columns) {
  return static_cast<std::size_t>(rows) * static_cast<std::size_t>(columns);
}

}  // namespace

// ---- Rope

Rope::Rope(std::int64_t head_dim, double theta, RopePairing pairing)
    : head_dim_(head_dim), pairing_(pairing) {
  for (std::int64_t j = 0; j < head_dim / 2; ++j) {
    const double exponent = -2.0 * static_cast<double>(j) / static_cast<double>(head_dim);
    frequencies_.push_back(defined_exp(exponent * defined_log(theta)));
  }
}

void Rope::angles(std::int64_t position, float* cos, float* sin) const {
  for (std::size_t j = 0; j < frequencies_.size(); ++j) {
    const double angle = static_cast<double>(position) * frequencies_[j];
    cos[j] = static_cast<float>(defined_cos(angle));
    sin[j] = static_cast<float>(defined_sin(angle));
  }
}

void Rope::rotate(const Executor& executor, float* heads, std::int64_t n, const float* cos,
                  const float* sin) const {
  for (std::int64_t head = 0; head < n; ++head) {
    executor.kernels().rope(heads + head * head_dim_, cos, sin, head_dim_, pairing_);
  }
}

// ---- RmsNorm

RmsNorm::RmsNorm(std::vector<float> weight, float eps) : weight_(std::move(weight)), eps_(eps) {}

void RmsNorm::forward(Executor& executor, const float* x, std::int64_t rows, float* y) const {
  const auto n = static_cast<std::int64_t>(weight_.size());
  executor.pool().parallel_for(rows, [&](std::int64_t row) {
    executor.kernels().rms_norm(x + row * n, weight_.data(), eps_, n, y + row * n);
  });
}

// ---- Linear

Linear::Linear(std::shared_ptr<const kernels::PackedMatrix> weight) : weight_(std::move(weight)) {}

std::int64_t Linear::in_features() const { return weight_->k; }
std::int64_t Linear::out_features() const { return weight_->n; }

void Linear::forward(Executor& executor, const float* x, std::int64_t rows, float* y) const {
  forward_all(executor, x, rows, {{this, y}});
}

void Linear::forward_all(Executor& executor, const float* x, std::int64_t rows,
                         std::initializer_list<std::pair<const Linear*, float*>> layers) {
  Executor::LinearInputs& inputs = executor.linear_inputs();
  inputs.set(x, rows, layers.begin()->first->in_features());
  for (const auto& [layer, y] : layers) {
    const kernels::PackedMatrix& w = *layer->weight_;
    const kernels::InputRows in = inputs.get(kernels::input_kind(w.type), executor);
    const std::int64_t panels = w.panels();
    const std::size_t panel_bytes = std::max<std::size_t>(w.nbytes() / static_cast<std::size_t>(panels), 1);
    const auto at_once = static_cast<std::int64_t>(std::max<std::size_t>(kPieceBytes / panel_bytes, 1));
    float* out = y;
    executor.pool().parallel_for((panels + at_once - 1) / at_once, [&](std::int64_t piece) {
      const std::int64_t begin = piece * at_once;
      executor.kernels().linear(w, begin, std::min(begin + at_once, panels), in, rows, out, w.n);
    });
  }
}

// ---- Attention

Attention::Attention(const Config& config, std::int32_t layer, Linear q, Linear k, Linear v, Linear o)
    : config_(config),
      layer_(layer),
      rope_(config.head_dim, config.rope_theta, config.rope_pairing),
      q_(std::move(q)),
      k_(std::move(k)),
      v_(std::move(v)),
      o_(std::move(o)) {}

void Attention::write_cache(const ForwardPass& pass, float* q, float* k, const float* v) const {
  const std::int64_t half = config_.head_dim / 2;
  const std::int64_t q_size = q_.out_features(), kv_size = k_.out_features();
  pass.executor.pool().parallel_for(static_cast<std::int64_t>(pass.rows.size()), [&](std::int64_t r) {
    const Row& row = pass.rows[static_cast<std::size_t>(r)];
    rope_.rotate(pass.executor, q + r * q_size, config_.n_head, pass.cos + r * half, pass.sin + r * half);
    rope_.rotate(pass.executor, k + r * kv_size, config_.n_kv_head, pass.cos + r * half, pass.sin + r * half);
    pass.executor.kernels().store_kv(pass.cache.view(layer_, row.sequence), row.position, k + r * kv_size,
                                     v + r * kv_size, config_.n_kv_head, config_.head_dim);
  });
}

void Attention::forward(const ForwardPass& pass, const float* x, float* out) const {
  Executor& executor = pass.executor;
  const auto rows = static_cast<std::int64_t>(pass.rows.size());
  float* q = executor.buffer(Executor::Buffer::kQuery, elements(rows, q_.out_features()));
  float* k = executor.buffer(Executor::Buffer::kKey, elements(rows, k_.out_features()));
  float* v = executor.buffer(Executor::Buffer::kValue, elements(rows, v_.out_features()));
  float* attended = executor.buffer(Executor::Buffer::kAttended, elements(rows, q_.out_features()));
  Linear::forward_all(executor, x, rows, {{&q_, q}, {&k_, k}, {&v_, v}});
  write_cache(pass, q, k, v);
  executor.computed(Operation::kQuery, layer_, rows, q, q_.out_features());
  executor.computed(Operation::kKey, layer_, rows, k, k_.out_features());
  executor.computed(Operation::kValue, layer_, rows, v, v_.out_features());

  const std::int64_t group = config_.n_head / config_.n_kv_head;
  const auto scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(config_.head_dim)));
  executor.pool().parallel_for(rows * config_.n_kv_head, [&](std::int64_t piece) {
    const std::int64_t r = piece / config_.n_kv_head, kv_head = piece % config_.n_kv_head;
    const Row& row = pass.rows[static_cast<std::size_t>(r)];
    const std::int64_t offset = r * q_.out_features() + kv_head * group * config_.head_dim;
    const kernels::AttentionQuery query{.q = q + offset,
                                        .out = attended + offset,
                                        .n_group = group,
                                        .head_dim = config_.head_dim,
                                        .kv_head = kv_head,
                                        .first_position = 0,
                                        .last_position = last_key_seen(row.position, 0),
                                        .scale = scale};
    thread_local std::vector<float> scratch;
    const std::size_t needed = kernels::attention_scratch(group, config_.head_dim, row.position + 1);
    if (scratch.size() < needed) scratch.resize(needed);
    executor.kernels().attention(pass.cache.view(layer_, row.sequence), query, scratch.data());
  });
  executor.computed(Operation::kAttention, layer_, rows, attended, q_.out_features());
  o_.forward(executor, attended, rows, out);
  executor.computed(Operation::kAttentionOutput, layer_, rows, out, o_.out_features());
}

// ---- Mlp

Mlp::Mlp(std::int32_t layer, Linear gate, Linear up, Linear down)
    : layer_(layer), gate_(std::move(gate)), up_(std::move(up)), down_(std::move(down)) {}

void Mlp::forward(Executor& executor, const float* x, std::int64_t rows, float* out) const {
  const std::int64_t d_ff = gate_.out_features();
  float* gate = executor.buffer(Executor::Buffer::kGate, elements(rows, d_ff));
  float* up = executor.buffer(Executor::Buffer::kUp, elements(rows, d_ff));
  Linear::forward_all(executor, x, rows, {{&gate_, gate}, {&up_, up}});
  executor.pool().parallel_for(rows, [&](std::int64_t row) {
    executor.kernels().swiglu(gate + row * d_ff, up + row * d_ff, d_ff, gate + row * d_ff);
  });
  executor.computed(Operation::kFfnActivation, layer_, rows, gate, d_ff);
  down_.forward(executor, gate, rows, out);
  executor.computed(Operation::kFfnDown, layer_, rows, out, down_.out_features());
}

// ---- Block

Block::Block(RmsNorm input_norm, Attention attention, RmsNorm post_attention_norm, Mlp mlp)
    : input_norm_(std::move(input_norm)),
      attention_(std::move(attention)),
      post_attention_norm_(std::move(post_attention_norm)),
      mlp_(std::move(mlp)) {}

void Block::forward(const ForwardPass& pass, float* x, std::int64_t d_model) const {
  Executor& executor = pass.executor;
  const auto rows = static_cast<std::int64_t>(pass.rows.size());
  float* normed = executor.buffer(Executor::Buffer::kNormed, elements(rows, d_model));
  float* projected = executor.buffer(Executor::Buffer::kProjected, elements(rows, d_model));
  const std::int32_t layer = attention_.layer();
  const auto add_to_residual = [&] {
    executor.pool().parallel_for(rows, [&](std::int64_t row) {
      executor.kernels().add(x + row * d_model, projected + row * d_model, d_model);
    });
  };
  input_norm_.forward(executor, x, rows, normed);
  executor.computed(Operation::kAttentionNorm, layer, rows, normed, d_model);
  attention_.forward(pass, normed, projected);
  add_to_residual();
  executor.computed(Operation::kAttentionResidual, layer, rows, x, d_model);
  post_attention_norm_.forward(executor, x, rows, normed);
  executor.computed(Operation::kFfnNorm, layer, rows, normed, d_model);
  mlp_.forward(executor, normed, rows, projected);
  add_to_residual();
  executor.computed(Operation::kFfnResidual, layer, rows, x, d_model);
}

}  // namespace kvasir
