// Where a model's tensors come from.
#ifndef KVASIR_MODEL_WEIGHT_SOURCE_H_
#define KVASIR_MODEL_WEIGHT_SOURCE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/tensor_type.h"
#include "formats/gguf.h"

namespace kvasir {

struct TensorView {
  TensorType type = TensorType::kF32;
  std::vector<std::uint64_t> shape;  // row-major
  std::span<const std::byte> data;
};

// Tensors by their Hugging Face names.
class WeightSource {
 public:
  virtual ~WeightSource() = default;
  virtual bool has(std::string_view name) const = 0;
  virtual TensorView get(std::string_view name) const = 0;  // Error(kFormat) if absent
  virtual std::vector<std::string> names() const = 0;       // of all tensors
  virtual void done_with(std::string_view) const {}         // its memory may be given back
  virtual std::string description() const = 0;              // for messages: a file name, for example
};

// Float32 tensors in memory.
class MemoryWeights : public WeightSource {
 public:
  void add(const std::string& name, std::vector<std::uint64_t> shape, std::vector<float> values);
  bool has(std::string_view name) const override;
  TensorView get(std::string_view name) const override;
  std::vector<std::string> names() const override;
  std::string description() const override { return "weights"; }

 private:
  struct Tensor {
    std::vector<std::uint64_t> shape;
    std::vector<float> values;
  };
  std::map<std::string, Tensor, std::less<>> tensors_;
};

// A GGUF file; its names are translated ("blk.0.attn_q.weight" is model.layers.0.self_attn.q_proj.weight).
class GgufWeights : public WeightSource {
 public:
  explicit GgufWeights(const GgufFile& file) : file_(&file) {}
  bool has(std::string_view name) const override;
  TensorView get(std::string_view name) const override;
  std::vector<std::string> names() const override;
  void done_with(std::string_view name) const override;
  std::string description() const override { return file_->path(); }

 private:
  const GgufFile* file_;
};

}  // namespace kvasir

#endif  // KVASIR_MODEL_WEIGHT_SOURCE_H_
