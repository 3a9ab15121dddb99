#include "model/weight_source.h"

#include <fmt/format.h>

#include <array>
#include <optional>
#include <utility>

#include "kvasir/error.h"

namespace kvasir {
namespace {

struct NamePair {
  std::string_view hugging_face;
  std::string_view gguf;
};

constexpr std::array<NamePair, 3> kModelNames = {{
    {"model.embed_tokens.weight", "token_embd.weight"},
    {"model.norm.weight", "output_norm.weight"},
    {"lm_head.weight", "output.weight"},
}};

// Behind "model.layers.N." and "blk.N.".
constexpr std::array<NamePair, 9> kLayerNames = {{
    {"input_layernorm.weight", "attn_norm.weight"},
    {"self_attn.q_proj.weight", "attn_q.weight"},
    {"self_attn.k_proj.weight", "attn_k.weight"},
    {"self_attn.v_proj.weight", "attn_v.weight"},
    {"self_attn.o_proj.weight", "attn_output.weight"},
    {"post_attention_layernorm.weight", "ffn_norm.weight"},
    {"mlp.gate_proj.weight", "ffn_gate.weight"},
    {"mlp.up_proj.weight", "ffn_up.weight"},
    {"mlp.down_proj.weight", "ffn_down.weight"},
}};

constexpr std::string_view kLayerPrefix = "model.layers.";
constexpr std::string_view kGgufLayerPrefix = "blk.";

using Side = std::string_view NamePair::*;

// The same tensor's name in the other spelling; nullopt for a name that neither table knows.
std::optional<std::string> translate(std::string_view name, Side from, Side to) {
  for (const NamePair& pair : kModelNames) {
    if (pair.*from == name) return std::string(pair.*to);
  }
  const bool from_gguf = from == &NamePair::gguf;
  const std::string_view from_prefix = from_gguf ? kGgufLayerPrefix : kLayerPrefix;
  const std::string_view to_prefix = from_gguf ? kLayerPrefix : kGgufLayerPrefix;
  if (!name.starts_with(from_prefix)) return std::nullopt;
  const std::string_view rest = name.substr(from_prefix.size());
  const std::size_t dot = rest.find('.');
  if (dot == std::string_view::npos) return std::nullopt;
  for (const NamePair& pair : kLayerNames) {
    if (pair.*from == rest.substr(dot + 1))
      return fmt::format("{}{}.{}", to_prefix, rest.substr(0, dot), pair.*to);
  }
  return std::nullopt;
}

std::string gguf_name(std::string_view name) {
  return translate(name, &NamePair::hugging_face, &NamePair::gguf).value_or(std::string(name));
}

}  // namespace

void MemoryWeights::add(const std::string& name, std::vector<std::uint64_t> shape,
                        std::vector<float> values) {
  std::uint64_t expected = 1;
  for (const std::uint64_t dimension : shape) expected *= dimension;
  if (expected != values.size()) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("tensor {}: shape says {} numbers, got {}", name, expected, values.size()));
  }
  tensors_.insert_or_assign(name, Tensor{std::move(shape), std::move(values)});
}

bool MemoryWeights::has(std::string_view name) const { return tensors_.find(name) != tensors_.end(); }

TensorView MemoryWeights::get(std::string_view name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end())
    throw Error(ErrorKind::kFormat, fmt::format("weights: tensor {} is missing", name));
  return {TensorType::kF32, found->second.shape, std::as_bytes(std::span(found->second.values))};
}

std::vector<std::string> MemoryWeights::names() const {
  std::vector<std::string> names;
  for (const auto& [name, tensor] : tensors_) names.push_back(name);
  return names;
}

bool GgufWeights::has(std::string_view name) const { return file_->find_tensor(gguf_name(name)) != nullptr; }

TensorView GgufWeights::get(std::string_view name) const {
  const GgufTensor& tensor = file_->tensor(gguf_name(name));
  return {tensor.type, tensor.shape, tensor.data};
}

void GgufWeights::done_with(std::string_view name) const { file_->release(file_->tensor(gguf_name(name))); }

std::vector<std::string> GgufWeights::names() const {
  std::vector<std::string> names;
  for (const GgufTensor& tensor : file_->tensors()) {
    names.push_back(
        translate(tensor.name, &NamePair::gguf, &NamePair::hugging_face).value_or(std::string(tensor.name)));
  }
  return names;
}

}  // namespace kvasir
