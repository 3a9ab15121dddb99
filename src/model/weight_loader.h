// Layers out of a weight source: shapes checked, linear layers packed, every tensor accounted for.
#ifndef KVASIR_MODEL_WEIGHT_LOADER_H_
#define KVASIR_MODEL_WEIGHT_LOADER_H_

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "base/memory_arena.h"
#include "kvasir/config.h"
#include "kvasir/executor.h"
#include "kvasir/layers.h"
#include "kvasir/model.h"
#include "model/weight_source.h"

namespace kvasir {

// All functions: Error(kFormat) naming source and tensor if it is missing or of another shape.
class WeightLoader {
 public:
  // The references must outlive the loader.
  WeightLoader(const WeightSource& weights, Activations activations, Executor& executor,
               LoadProgress progress = {});

  std::shared_ptr<const kernels::PackedMatrix> matrix(const std::string& name, std::int64_t out,
                                                      std::int64_t in, Activations activations);
  Linear linear(const std::string& name, std::int64_t out, std::int64_t in);
  // These take the tensors whose Hugging Face names begin with `prefix` ("model.layers.0.", say).
  RmsNorm norm(const std::string& name, const Config& config);
  Attention attention(const std::string& prefix, const Config& config, std::int32_t layer);
  Mlp mlp(const std::string& prefix, const Config& config, std::int32_t layer);
  Block block(const std::string& prefix, const Config& config, std::int32_t layer);

  // A tensor that nobody took would have changed the results: the source holds something that we do not know.
  // Error(kFormat) naming it.
  void refuse_unused() const;

  std::size_t packed_bytes() const { return packed_bytes_; }  // of all linear layers so far

 private:
  [[noreturn]] void refuse(const std::string& message) const;
  TensorView tensor(const std::string& name, const std::vector<std::uint64_t>& shape);
  void done_with(const std::string& name, const TensorView& view);

  const WeightSource& weights_;
  Activations activations_;
  Executor& executor_;
  LoadProgress progress_;
  MemoryArena memory_;
  std::set<std::string> used_;
  std::size_t total_bytes_ = 0, loaded_bytes_ = 0;  // as stored
  std::size_t packed_bytes_ = 0;
};

}  // namespace kvasir

#endif  // KVASIR_MODEL_WEIGHT_LOADER_H_
