#include "model/hyperparameters.h"

#include <fmt/format.h>

#include <limits>
#include <string>
#include <string_view>

#include "kvasir/error.h"

namespace kvasir {
namespace {

[[noreturn]] void refuse(const GgufFile& file, const std::string& message) {
  throw Error(ErrorKind::kFormat, fmt::format("{}: {}", file.path(), message));
}

std::int32_t checked_int(const GgufFile& file, std::string_view key, std::int64_t value) {
  if (value < 1 || value > std::numeric_limits<std::int32_t>::max()) {
    refuse(file, fmt::format("{} is {}, which cannot be", key, value));
  }
  return static_cast<std::int32_t>(value);
}

// Features of the Llama family that change the numbers. Better no answer than a wrong one.
void refuse_unsupported_features(const GgufFile& file) {
  for (const std::string_view key : {"llama.expert_count", "llama.attention.sliding_window"}) {
    const auto value = file.find_int(key);
    if (value.has_value() && *value != 0) refuse(file, fmt::format("{} = {} is not supported", key, *value));
  }
  const auto scaling = file.find_string("llama.rope.scaling.type");
  if (scaling.has_value() && *scaling != "none") {
    refuse(file, fmt::format("llama.rope.scaling.type = \"{}\" is not supported", *scaling));
  }
}

}  // namespace

Config config_from_gguf(const GgufFile& file) {
  const std::string_view architecture = file.get_string("general.architecture");
  if (architecture != "llama") {
    refuse(file, fmt::format("architecture \"{}\" is not supported (supported: llama)", architecture));
  }
  refuse_unsupported_features(file);
  const auto required = [&](std::string_view key) { return checked_int(file, key, file.get_int(key)); };
  const auto optional = [&](std::string_view key, std::int32_t otherwise) {
    const auto value = file.find_int(key);
    return value.has_value() ? checked_int(file, key, *value) : otherwise;
  };

  Config config;
  config.max_seq = required("llama.context_length");
  config.n_layer = required("llama.block_count");
  config.d_model = required("llama.embedding_length");
  config.d_ff = required("llama.feed_forward_length");
  config.n_head = required("llama.attention.head_count");
  config.n_kv_head = optional("llama.attention.head_count_kv", config.n_head);
  config.head_dim = optional("llama.attention.key_length", config.d_model / config.n_head);
  if (optional("llama.attention.value_length", config.head_dim) != config.head_dim) {
    refuse(file, "llama.attention.value_length differs from the key length, which is not supported");
  }
  if (optional("llama.rope.dimension_count", config.head_dim) != config.head_dim) {
    refuse(file, "llama.rope.dimension_count differs from the head dimension, which is not supported");
  }
  config.rope_theta = file.find_float("llama.rope.freq_base").value_or(10000.0);
  config.rms_eps = static_cast<float>(file.get_float("llama.attention.layer_norm_rms_epsilon"));
  config.rope_pairing = RopePairing::kInterleaved;  // GGUF's llama stores q and k in this order

  const GgufTensor& embedding = file.tensor("token_embd.weight");
  if (embedding.shape.size() != 2) refuse(file, "token_embd.weight is no matrix");
  config.vocab_size =
      checked_int(file, "token_embd.weight rows", static_cast<std::int64_t>(embedding.shape[0]));
  try {
    check_config(config);
  } catch (const Error& error) {
    refuse(file, error.what());
  }
  return config;
}

}  // namespace kvasir
