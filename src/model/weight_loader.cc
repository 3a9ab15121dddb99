#include "model/weight_loader.h"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "base/thread_pool.h"
#include "kernels/dequantize.h"
#include "kernels/packed_matrix.h"
#include "kvasir/error.h"

namespace kvasir {

WeightLoader::WeightLoader(const WeightSource& weights, Activations activations, Executor& executor,
                           LoadProgress progress)
    : weights_(weights), activations_(activations), executor_(executor), progress_(std::move(progress)) {
  for (const std::string& name : weights.names()) total_bytes_ += weights.get(name).data.size();
}

void WeightLoader::refuse(const std::string& message) const {
  throw Error(ErrorKind::kFormat, fmt::format("{}: {}", weights_.description(), message));
}

TensorView WeightLoader::tensor(const std::string& name, const std::vector<std::uint64_t>& shape) {
  TensorView view = weights_.get(name);
  if (view.shape != shape) {
    refuse(fmt::format("tensor {} has shape [{}], expected [{}]", name, fmt::join(view.shape, ", "),
                       fmt::join(shape, ", ")));
  }
  used_.insert(name);
  return view;
}

void WeightLoader::done_with(const std::string& name, const TensorView& view) {
  weights_.done_with(name);
  loaded_bytes_ += view.data.size();
  if (progress_) progress_(static_cast<double>(loaded_bytes_) / static_cast<double>(total_bytes_));
}

RmsNorm WeightLoader::norm(const std::string& name, const Config& config) {
  const TensorView view = tensor(name, {static_cast<std::uint64_t>(config.d_model)});
  std::vector<float> values(static_cast<std::size_t>(config.d_model));
  kernels::dequantize(view.type, view.data.data(), values);
  done_with(name, view);
  return {std::move(values), config.rms_eps};
}

std::shared_ptr<const kernels::PackedMatrix> WeightLoader::matrix(const std::string& name, std::int64_t out,
                                                                  std::int64_t in, Activations activations) {
  const TensorView view = tensor(name, {static_cast<std::uint64_t>(out), static_cast<std::uint64_t>(in)});
  auto packed = std::make_shared<kernels::PackedMatrix>(
      kernels::make_packed_matrix(view.type, out, in, activations, memory_));
  executor_.pool().parallel_for(packed->panels(), [&](std::int64_t panel) {
    kernels::pack_panel(*packed, view.type, view.data.data(), panel);
  });
  packed_bytes_ += packed->nbytes();
  done_with(name, view);
  return packed;
}

Linear WeightLoader::linear(const std::string& name, std::int64_t out, std::int64_t in) {
  return Linear(matrix(name, out, in, activations_));
}

Attention WeightLoader::attention(const std::string& prefix, const Config& config, std::int32_t layer) {
  const std::int64_t q_size = std::int64_t{config.n_head} * config.head_dim;
  const std::int64_t kv_size = std::int64_t{config.n_kv_head} * config.head_dim;
  return {config,
          layer,
          linear(prefix + "q_proj.weight", q_size, config.d_model),
          linear(prefix + "k_proj.weight", kv_size, config.d_model),
          linear(prefix + "v_proj.weight", kv_size, config.d_model),
          linear(prefix + "o_proj.weight", config.d_model, q_size)};
}

Mlp WeightLoader::mlp(const std::string& prefix, const Config& config, std::int32_t layer) {
  return {layer, linear(prefix + "gate_proj.weight", config.d_ff, config.d_model),
          linear(prefix + "up_proj.weight", config.d_ff, config.d_model),
          linear(prefix + "down_proj.weight", config.d_model, config.d_ff)};
}

Block WeightLoader::block(const std::string& prefix, const Config& config, std::int32_t layer) {
  return {norm(prefix + "input_layernorm.weight", config), attention(prefix + "self_attn.", config, layer),
          norm(prefix + "post_attention_layernorm.weight", config), mlp(prefix + "mlp.", config, layer)};
}

void WeightLoader::refuse_unused() const {
  for (const std::string& name : weights_.names()) {
    if (!used_.contains(name)) refuse(fmt::format("tensor {} has no place in this architecture", name));
  }
}

}  // namespace kvasir
