#include "kvasir/config.h"

#include <fmt/format.h>

#include "kvasir/error.h"

namespace kvasir {

void check_config(const Config& config) {
  const auto refuse = [](const std::string& message) { throw Error(ErrorKind::kInvalidArgument, message); };
  const auto at_least_one = [&](const char* name, std::int32_t value) {
    if (value < 1) refuse(fmt::format("config: {} is {}, must be at least 1", name, value));
  };
  at_least_one("vocab_size", config.vocab_size);
  at_least_one("max_seq", config.max_seq);
  at_least_one("n_layer", config.n_layer);
  at_least_one("n_head", config.n_head);
  at_least_one("n_kv_head", config.n_kv_head);
  at_least_one("head_dim", config.head_dim);
  at_least_one("d_model", config.d_model);
  at_least_one("d_ff", config.d_ff);
  if (config.n_head % config.n_kv_head != 0) {
    refuse(fmt::format("config: n_head {} is no multiple of n_kv_head {}", config.n_head, config.n_kv_head));
  }
  if (config.head_dim % 2 != 0) {
    refuse(fmt::format("config: head_dim {} is odd; RoPE rotates pairs of numbers", config.head_dim));
  }
  if (!(config.rope_theta > 0.0))
    refuse(fmt::format("config: rope_theta {} must be positive", config.rope_theta));
  if (!(config.rms_eps >= 0.0F))
    refuse(fmt::format("config: rms_eps {} must not be negative", config.rms_eps));
}

}  // namespace kvasir
