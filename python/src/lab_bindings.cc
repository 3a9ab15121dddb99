// kvasir.lab: the names of the lab, bound to the real layers, cache and sampler.
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <mutex>
#include <string>

#include "bindings.h"
#include "kvasir/lab.h"
#include "kvasir/sampling.h"

namespace kvasir::python {
namespace {

using FloatArray = InputArray<float>;
using IdArray = InputArray<TokenId>;
using FloatOutput = OutputArray<float>;
using ArrayDict = std::map<std::string, FloatArray>;

// Caches, models and the executor may be shared by Python threads: one of them computes at a time. It is
// taken without the GIL, so that nobody waits for it while holding the GIL.
std::mutex lab_mutex;

class Computing {
 public:
  Computing() : lock_(lab_mutex) {}
  // Between steps of a long computation: other threads may compute, and signals are handled.
  void pause() {
    lock_.unlock();
    check_signals();
    lock_.lock();
  }

 private:
  nb::gil_scoped_release release_;
  std::unique_lock<std::mutex> lock_;
};

// What functions and layers that have no model run on.
Executor& executor() {
  static Executor shared;
  return shared;
}

StateDict to_state(const ArrayDict& arrays) {
  StateDict state;
  for (const auto& [name, array] : arrays) {
    Tensor tensor;
    for (std::size_t i = 0; i < array.ndim(); ++i) tensor.shape.push_back(array.shape(i));
    tensor.values.assign(array.data(), array.data() + array.size());
    state.emplace(name, std::move(tensor));
  }
  return state;
}

nb::typed<nb::dict, nb::str, FloatOutput> to_dict(const StateDict& state) {
  nb::dict arrays;
  for (const auto& [name, tensor] : state) {
    auto array = tensor.shape.size() == 1 ? to_numpy(tensor.values, {tensor.shape[0]})
                                          : to_numpy(tensor.values, {tensor.shape[0], tensor.shape[1]});
    arrays[name.c_str()] = array;
  }
  return arrays;
}

Config make_config(std::int32_t vocab_size, std::int32_t max_seq, std::int32_t n_layer, std::int32_t n_head,
                   std::int32_t n_kv_head, std::int32_t head_dim, std::int32_t d_model, std::int32_t d_ff,
                   double rope_theta, double rms_eps, RopePairing pairing) {
  const Config config{vocab_size, max_seq, n_layer, n_head,     n_kv_head,
                      head_dim,   d_model, d_ff,    rope_theta, static_cast<float>(rms_eps),
                      pairing};
  check_config(config);
  return config;
}

// ---- Cache

// [batch][n_kv_head][positions][head_dim] of a layer.
std::pair<FloatOutput, FloatOutput> to_arrays(const KvCache::Prefix& prefix, const FloatArray& like) {
  const auto positions = static_cast<std::size_t>(prefix.positions);
  const auto array = [&](const std::vector<float>& numbers) {
    return to_numpy(numbers, {like.shape(0), like.shape(1), positions, like.shape(3)});
  };
  return {array(prefix.keys), array(prefix.values)};
}

std::pair<FloatOutput, FloatOutput> update(KvCache& cache, std::int32_t layer, const FloatArray& k_new,
                                           const FloatArray& v_new) {
  KvCache::Prefix prefix;
  {
    const Computing computing;
    prefix = cache.update(layer, values(k_new), values(v_new), static_cast<std::int64_t>(k_new.shape(2)));
  }
  return to_arrays(prefix, k_new);
}

// Keys and values of one layer, every position, as flat arrays.
std::pair<FloatOutput, FloatOutput> read_layer(const KvCache& cache, std::int32_t layer) {
  const KvCache::Prefix prefix = cache.read(layer, cache.max_seq());
  return {to_numpy(prefix.keys, {prefix.keys.size()}), to_numpy(prefix.values, {prefix.values.size()})};
}

OutputArray<bool> mask(std::int64_t t_new, std::int64_t pos) {
  const auto rows = cache_attention_mask(t_new, pos);
  const std::size_t height = rows.size(), width = static_cast<std::size_t>(t_new + pos);
  auto flat = std::make_unique_for_overwrite<bool[]>(height * width);
  for (std::size_t row = 0; row < height; ++row) {
    std::copy(rows[row].begin(), rows[row].end(), &flat[row * width]);
  }
  return to_numpy(std::move(flat), {height, width});
}

// ---- Layers. x: [batch][t][d_model].

template <class Layer>
FloatOutput forward_layer(const Layer& layer, const FloatArray& x, KvCache* cache) {
  std::vector<float> out;
  {
    const Computing computing;
    out = layer.forward(values(x), static_cast<std::int32_t>(x.shape(0)), cache, executor());
  }
  return to_numpy(out, {x.shape(0), x.shape(1), x.shape(2)});
}

template <class Layer>
void bind_layer(nb::module_& module, const char* name) {
  nb::class_<Layer>(module, name)
      .def("__init__", [](Layer* self, const Config& config, std::int32_t layer,
                          const ArrayDict& weights) { new (self) Layer(config, layer, to_state(weights)); })
      .def("forward", &forward_layer<Layer>, nb::arg("x").noconvert(), nb::arg("cache").none());
}

// ---- Model. idx: [batch][t].

FloatOutput forward_model(TinyLM& model, const IdArray& idx, KvCache* cache) {
  std::vector<float> logits;
  {
    const Computing computing;
    logits = model.forward(values(idx), static_cast<std::int32_t>(idx.shape(0)), cache);
  }
  return to_numpy(logits, {idx.shape(0), idx.shape(1), static_cast<std::size_t>(model.config().vocab_size)});
}

OutputArray<TokenId> generate_rows(TinyLM& model, const IdArray& prompt, std::int64_t max_new_tokens,
                                   bool use_cache, std::int64_t prefill_chunk, double temperature,
                                   std::int64_t top_k, double top_p, double min_p, Generator* generator) {
  std::vector<TokenId> ids;
  {
    Computing computing;
    ids =
        generate(model, values(prompt), static_cast<std::int32_t>(prompt.shape(0)), max_new_tokens, use_cache,
                 prefill_chunk, {temperature, top_k, top_p, min_p, generator}, [&] { computing.pause(); });
  }
  return to_numpy(ids, {prompt.shape(0), prompt.shape(1) + static_cast<std::size_t>(max_new_tokens)});
}

// ---- Sampling. logits: [rows][vocab].

template <auto filter>
void filter_rows(nb::ndarray<double, nb::ndim<2>, nb::c_contig, nb::device::cpu> logits, double threshold) {
  for (std::size_t row = 0; row < logits.shape(0); ++row) {
    filter({logits.data() + row * logits.shape(1), logits.shape(1)}, threshold);
  }
}

OutputArray<TokenId> sample_rows(const FloatArray& logits, double temperature, std::int64_t top_k,
                                 double top_p, double min_p, Generator& generator) {
  std::vector<TokenId> ids;
  {
    const Computing computing;
    ids = sample_next(values(logits), logits.shape(0), temperature, top_k, top_p, min_p, generator);
  }
  return to_numpy(ids, {logits.shape(0)});
}

void bind_sampling(nb::module_& module) {
  nb::class_<Generator>(module, "Generator")
      .def(nb::init<std::uint64_t>(), nb::arg("seed"))
      .def_prop_ro("seed", &Generator::seed);
  const auto top_k = [](std::span<double> row, double k) { top_k_filter(row, static_cast<std::int64_t>(k)); };
  const auto top_p = [](std::span<double> row, double p) { top_p_filter(row, p); };
  const auto min_p = [](std::span<double> row, double p) { min_p_filter(row, p); };
  module.def("top_k_filter", &filter_rows<top_k>, nb::arg("logits").noconvert(), nb::arg("k"));
  module.def("top_p_filter", &filter_rows<top_p>, nb::arg("logits").noconvert(), nb::arg("p"));
  module.def("min_p_filter", &filter_rows<min_p>, nb::arg("logits").noconvert(), nb::arg("min_p"));
  module.def("sample_next", &sample_rows, nb::arg("logits").noconvert(), nb::arg("temperature"),
             nb::arg("top_k"), nb::arg("top_p"), nb::arg("min_p"), nb::arg("generator"));
}

void bind_cache(nb::module_& module) {
  nb::enum_<KvType>(module, "KvType")
      .value("f32", KvType::kF32)
      .value("f16", KvType::kF16)
      .value("bf16", KvType::kBF16);
  nb::class_<KvCache>(module, "KvCache")
      .def(nb::init<const Config&, std::int32_t, KvType>(), nb::arg("config"), nb::arg("batch"),
           nb::arg("type"))
      .def("update", &update, nb::arg("layer"), nb::arg("k_new").noconvert(), nb::arg("v_new").noconvert())
      .def("read_layer", &read_layer, nb::arg("layer"))
      .def("advance", &KvCache::advance, nb::arg("t"))
      .def_prop_ro("pos", &KvCache::pos)
      .def_prop_ro("max_seq", &KvCache::max_seq)
      .def_prop_ro("nbytes", &KvCache::nbytes);
  module.def("cache_attention_mask", &mask, nb::arg("t_new"), nb::arg("pos"));
}

FloatOutput norm_rows(const FloatArray& x, const FloatArray& weight, double eps) {
  std::vector<float> y;
  {
    const Computing computing;
    y = rms_norm(values(x), values(weight), static_cast<float>(eps), executor());
  }
  return to_numpy(y, {y.size()});
}

FloatOutput rope_rows(const FloatArray& x, const InputArray<std::int64_t>& positions, std::int64_t head_dim,
                      double theta, RopePairing pairing) {
  std::vector<float> y;
  {
    const Computing computing;
    y = apply_rope(values(x), values(positions), head_dim, theta, pairing, executor());
  }
  return to_numpy(y, {y.size()});
}

}  // namespace

void bind_lab(nb::module_& module) {
  nb::enum_<RopePairing>(module, "RopePairing")
      .value("neox", RopePairing::kHalfSplit)
      .value("interleaved", RopePairing::kInterleaved);
  nb::class_<Config>(module, "Config");
  module.def("make_config", &make_config, nb::arg("vocab_size"), nb::arg("max_seq"), nb::arg("n_layer"),
             nb::arg("n_head"), nb::arg("n_kv_head"), nb::arg("head_dim"), nb::arg("d_model"),
             nb::arg("d_ff"), nb::arg("rope_theta"), nb::arg("rms_eps"), nb::arg("pairing"));
  bind_cache(module);
  bind_sampling(module);
  bind_layer<LabAttention>(module, "Attention");
  bind_layer<LabBlock>(module, "Block");
  nb::class_<TinyLM>(module, "TinyLM")
      .def("__init__", [](TinyLM* self, const Config& config,
                          const ArrayDict& weights) { new (self) TinyLM(config, to_state(weights)); })
      .def("forward", &forward_model, nb::arg("idx").noconvert(), nb::arg("cache").none());
  module.def("random_weights",
             [](const Config& config, std::uint64_t seed) { return to_dict(random_weights(config, seed)); });
  module.def("generate", &generate_rows, nb::arg("model"), nb::arg("prompt").noconvert(),
             nb::arg("max_new_tokens"), nb::arg("use_cache"), nb::arg("prefill_chunk"),
             nb::arg("temperature"), nb::arg("top_k"), nb::arg("top_p"), nb::arg("min_p"),
             nb::arg("generator").none());
  module.def("rms_norm", &norm_rows, nb::arg("x").noconvert(), nb::arg("weight").noconvert(), nb::arg("eps"));
  module.def("rope", &rope_rows, nb::arg("x").noconvert(), nb::arg("positions").noconvert(),
             nb::arg("head_dim"), nb::arg("theta"), nb::arg("pairing"));
}

}  // namespace kvasir::python
