#include "kvasir/lab.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <random>

#include "base/elementary.h"
#include "base/float_environment.h"
#include "engine/lab_weights.h"
#include "kvasir/error.h"
#include "kvasir/sequence_runner.h"

namespace kvasir {
namespace {

// The C++ standard defines the engine's output bit for bit, but not that of its distributions: those are
// ours.
class RandomNumbers {
 public:
  explicit RandomNumbers(std::uint64_t seed) : engine_(seed) {}
  double uniform() { return (static_cast<double>(engine_() >> 12) + 0.5) * 0x1p-52; }  // in (0, 1)
  double normal() {                                                                    // Box and Muller 1958
    constexpr double kTwoPi = 6.283185307179586;
    return std::sqrt(-2.0 * defined_log(uniform())) * defined_cos(kTwoPi * uniform());
  }

 private:
  std::mt19937_64 engine_;
};

Model make_model(const Config& config, const StateDict& state, Executor& executor) {
  return {config, memory_weights(state), Activations::kDefault, executor};
}

}  // namespace

namespace {

StateDict draw_weights(const Config& config, std::uint64_t seed) {
  RandomNumbers random(seed);
  StateDict state;
  const auto size = [](std::int64_t n) { return static_cast<std::uint64_t>(n); };
  const auto linear = [&](const std::string& name, std::int64_t out, std::int64_t in) {
    Tensor tensor{{size(out), size(in)}, std::vector<float>(size(out * in))};
    const double bound = 1.0 / std::sqrt(static_cast<double>(in));
    for (float& value : tensor.values) value = static_cast<float>((2.0 * random.uniform() - 1.0) * bound);
    state[name] = std::move(tensor);
  };
  const auto norm = [&](const std::string& name) {
    state[name] = {{size(config.d_model)}, std::vector<float>(size(config.d_model), 1.0F)};
  };
  Tensor embedding{{size(config.vocab_size), size(config.d_model)}, {}};
  embedding.values.resize(size(std::int64_t{config.vocab_size} * config.d_model));
  for (float& value : embedding.values) value = static_cast<float>(random.normal());
  state["model.embed_tokens.weight"] = std::move(embedding);
  const std::int64_t q_size = std::int64_t{config.n_head} * config.head_dim;
  const std::int64_t kv_size = std::int64_t{config.n_kv_head} * config.head_dim;
  for (std::int32_t layer = 0; layer < config.n_layer; ++layer) {
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    norm(prefix + "input_layernorm.weight");
    linear(prefix + "self_attn.q_proj.weight", q_size, config.d_model);
    linear(prefix + "self_attn.k_proj.weight", kv_size, config.d_model);
    linear(prefix + "self_attn.v_proj.weight", kv_size, config.d_model);
    linear(prefix + "self_attn.o_proj.weight", config.d_model, q_size);
    norm(prefix + "post_attention_layernorm.weight");
    linear(prefix + "mlp.gate_proj.weight", config.d_ff, config.d_model);
    linear(prefix + "mlp.up_proj.weight", config.d_ff, config.d_model);
    linear(prefix + "mlp.down_proj.weight", config.d_model, config.d_ff);
  }
  norm("model.norm.weight");
  linear("lm_head.weight", config.vocab_size, config.d_model);
  return state;
}

}  // namespace

MemoryWeights memory_weights(const StateDict& state) {
  MemoryWeights weights;
  for (const auto& [name, tensor] : state) weights.add(name, tensor.shape, tensor.values);
  return weights;
}

StateDict random_weights(const Config& config, std::uint64_t seed) {
  check_config(config);
  return with_defined_floats([&] { return draw_weights(config, seed); });
}

TinyLM::TinyLM(const Config& config, std::uint64_t seed) : TinyLM(config, random_weights(config, seed)) {}

TinyLM::TinyLM(const Config& config, const StateDict& weights)
    : model_(make_model(config, weights, executor_)) {}

std::vector<float> TinyLM::forward(std::span<const TokenId> idx, std::int32_t batch, KvCache* cache) {
  if (batch < 1 || idx.empty() || idx.size() % static_cast<std::size_t>(batch) != 0) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("TinyLM: {} ids are no batch of {} equally long sequences", idx.size(), batch));
  }
  const std::size_t t = idx.size() / static_cast<std::size_t>(batch);
  std::optional<KvCache> fresh;
  if (cache == nullptr) cache = &fresh.emplace(config(), batch);
  if (cache->batch() != batch) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("TinyLM: a batch of {} with a cache for {}", batch, cache->batch()));
  }
  std::vector<Run> runs;
  runs.reserve(static_cast<std::size_t>(batch));
  for (std::int32_t b = 0; b < batch; ++b) {
    runs.push_back(
        {b, idx.subspan(static_cast<std::size_t>(b) * t, t), cache->length(b), static_cast<std::int64_t>(t)});
  }
  std::vector<float> logits;
  model_.forward(runs, *cache, executor_, logits);
  return logits;
}

std::vector<TokenId> generate(TinyLM& model, std::span<const TokenId> prompt, std::int32_t batch,
                              std::int64_t max_new_tokens, bool use_cache, std::int64_t prefill_chunk,
                              const LabSampling& sampling, const std::function<void()>& after_step) {
  if (max_new_tokens < 0) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("max_new_tokens is {}, must not be negative", max_new_tokens));
  }
  const Config& config = model.config();
  SequenceRunner runner(model.model(), model.executor(), batch, config.max_seq, KvType::kF32,
                        {use_cache, prefill_chunk});
  const auto rows = static_cast<std::size_t>(batch);
  const std::size_t p = prompt.size() / rows, total = p + static_cast<std::size_t>(max_new_tokens);
  if (total > static_cast<std::size_t>(config.max_seq)) {
    throw Error(ErrorKind::kCapacity,
                fmt::format("{} prompt tokens and {} new ones do not fit: max_seq is {}", p, max_new_tokens,
                            config.max_seq));
  }
  Generator own(0);
  Generator& generator = sampling.generator != nullptr ? *sampling.generator : own;
  std::vector<TokenId> sequences(rows * total);
  const auto append = [&](std::size_t at, std::span<const TokenId> tokens) {  // tokens: [batch][n]
    const std::size_t n = tokens.size() / rows;
    for (std::size_t b = 0; b < rows; ++b) {
      std::copy_n(tokens.begin() + static_cast<std::ptrdiff_t>(b * n), n,
                  sequences.begin() + static_cast<std::ptrdiff_t>(b * total + at));
    }
  };
  std::span<const float> logits = runner.append(prompt);
  append(0, prompt);
  for (std::size_t at = p; at < total; ++at) {
    const std::vector<TokenId> next = sample_next(logits, rows, sampling.temperature, sampling.top_k,
                                                  sampling.top_p, sampling.min_p, generator);
    append(at, next);
    if (after_step) after_step();
    if (at + 1 < total) logits = runner.append(next);
  }
  return sequences;
}

}  // namespace kvasir
