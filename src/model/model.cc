#include "kvasir/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/float_environment.h"
#include "base/thread_pool.h"
#include "kernels/packed_matrix.h"
#include "kvasir/error.h"
#include "kvasir/layers.h"
#include "model/hyperparameters.h"
#include "model/weight_loader.h"
#include "model/weight_source.h"
#include "model/workspace.h"

namespace kvasir {

struct Model::State {
  Config config;
  Activations activations;
  std::shared_ptr<const kernels::PackedMatrix> embedding;  // [vocab_size][d_model]; may be the head's, too
  Rope rope;
  std::vector<Block> blocks;
  RmsNorm norm;
  Linear head;
  std::size_t weight_bytes;

  static std::unique_ptr<const State> load(const Config& config, const WeightSource& weights,
                                           Activations activations, Executor& executor,
                                           const LoadProgress& progress);

  void embed(TokenId id, float* out) const {
    kernels::dequantize_output(*embedding, id, {out, static_cast<std::size_t>(config.d_model)});
  }

  void check_runs(std::span<const Run> runs, const SequenceCache& cache, Executor& executor) const;
  std::int64_t gather_logit_rows(std::span<const Run> runs, const float* x, float* out) const;
  void forward(std::span<const Run> runs, SequenceCache& cache, Executor& executor,
               std::vector<float>& logits) const;
};

Model Model::from_gguf(const GgufFile& file, Activations activations, Executor& executor,
                       const LoadProgress& progress) {
  return {config_from_gguf(file), GgufWeights(file), activations, executor, progress};
}

std::unique_ptr<const Model::State> Model::State::load(const Config& config, const WeightSource& weights,
                                                       Activations activations, Executor& executor,
                                                       const LoadProgress& progress) {
  WeightLoader loader(weights, activations, executor, progress);
  const bool tied = !weights.has("lm_head.weight");
  // The output shares the embedding's numbers, and then they take the form that its products need.
  auto embedding = loader.matrix("model.embed_tokens.weight", config.vocab_size, config.d_model,
                                 tied ? activations : Activations::kDefault);
  std::vector<Block> blocks;
  blocks.reserve(
      static_cast<std::size_t>(std::min(config.n_layer, 1000)));  // a file may lie about their number
  for (std::int32_t layer = 0; layer < config.n_layer; ++layer) {
    blocks.push_back(loader.block(fmt::format("model.layers.{}.", layer), config, layer));
  }
  RmsNorm norm = loader.norm("model.norm.weight", config);
  Linear head = tied ? Linear(embedding) : loader.linear("lm_head.weight", config.vocab_size, config.d_model);
  loader.refuse_unused();
  return std::make_unique<const State>(State{config, activations, std::move(embedding),
                                             Rope(config.head_dim, config.rope_theta, config.rope_pairing),
                                             std::move(blocks), std::move(norm), std::move(head),
                                             loader.packed_bytes()});
}

Model::Model(const Config& config, const WeightSource& weights, Activations activations, Executor& executor,
             const LoadProgress& progress) {
  check_config(config);
  state_ = with_defined_floats([&] { return State::load(config, weights, activations, executor, progress); });
}

Model::~Model() = default;
Model::Model(Model&&) noexcept = default;
Model& Model::operator=(Model&&) noexcept = default;

const Config& Model::config() const { return state_->config; }
std::size_t Model::weight_bytes() const { return state_->weight_bytes; }
Activations Model::activations() const { return state_->activations; }

void Model::State::check_runs(std::span<const Run> runs, const SequenceCache& cache,
                              Executor& executor) const {
  const auto refuse = [](const std::string& message) { throw Error(ErrorKind::kInvalidArgument, message); };
  if (!cache.fits(config)) refuse("forward: the cache was made for a model of another shape");
  std::vector<std::int32_t>& sequences = executor.workspace().sequences;
  sequences.clear();
  for (const Run& run : runs) {
    const auto count = static_cast<std::int64_t>(run.tokens.size());
    if (run.sequence < 0 || run.sequence >= cache.sequences()) {
      refuse(fmt::format("forward: no sequence {} in a cache of {}", run.sequence, cache.sequences()));
    }
    sequences.push_back(run.sequence);
    if (count == 0) refuse("forward: a run without tokens");
    if (run.n_logits < 0 || run.n_logits > count) {
      refuse(fmt::format("forward: logits of {} tokens wanted from a run of {}", run.n_logits, count));
    }
    if (run.first_position < 0 || run.first_position > cache.length(run.sequence)) {
      refuse(fmt::format("forward: a run at position {} of a sequence of {}", run.first_position,
                         cache.length(run.sequence)));
    }
    if (run.first_position < cache.first_writable(run.sequence)) {
      refuse(fmt::format("forward: a run at position {}, but positions before {} may be shared",
                         run.first_position, cache.first_writable(run.sequence)));
    }
    if (run.first_position + count > cache.capacity(run.sequence)) {
      throw Error(ErrorKind::kCapacity,
                  fmt::format("KV cache overflow: {} positions, but max_seq is {}",
                              run.first_position + count, cache.capacity(run.sequence)));
    }
    for (const TokenId id : run.tokens) {
      if (id < 0 || id >= config.vocab_size) {
        refuse(fmt::format("token id {} is outside the vocabulary of {}", id, config.vocab_size));
      }
    }
  }
  std::sort(sequences.begin(), sequences.end());
  const auto twice = std::adjacent_find(sequences.begin(), sequences.end());
  if (twice != sequences.end()) refuse(fmt::format("forward: two runs of sequence {}", *twice));
}

// Packs the rows whose logits are wanted, [n][d_model]; returns n.
std::int64_t Model::State::gather_logit_rows(std::span<const Run> runs, const float* x, float* out) const {
  const std::int64_t d_model = config.d_model;
  std::int64_t n = 0, run_end = 0;
  for (const Run& run : runs) {
    run_end += static_cast<std::int64_t>(run.tokens.size());
    std::copy_n(x + (run_end - run.n_logits) * d_model, run.n_logits * d_model, out + n * d_model);
    n += run.n_logits;
  }
  return n;
}

void Model::State::forward(std::span<const Run> runs, SequenceCache& cache, Executor& executor,
                           std::vector<float>& logits) const {
  std::vector<Row>& rows = executor.workspace().rows;
  std::vector<TokenId>& tokens = executor.workspace().tokens;
  rows.clear();
  tokens.clear();
  for (const Run& run : runs) {
    for (std::size_t i = 0; i < run.tokens.size(); ++i) {
      rows.push_back({run.sequence, run.first_position + static_cast<std::int64_t>(i)});
    }
    tokens.insert(tokens.end(), run.tokens.begin(), run.tokens.end());
  }
  const std::int64_t d_model = config.d_model, half = config.head_dim / 2;
  float* x = executor.buffer(Executor::Buffer::kResidual, rows.size() * static_cast<std::size_t>(d_model));
  float* cos = executor.buffer(Executor::Buffer::kCos, rows.size() * static_cast<std::size_t>(half));
  float* sin = executor.buffer(Executor::Buffer::kSin, rows.size() * static_cast<std::size_t>(half));
  executor.pool().parallel_for(static_cast<std::int64_t>(rows.size()), [&](std::int64_t r) {
    embed(tokens[static_cast<std::size_t>(r)], x + r * d_model);
    rope.angles(rows[static_cast<std::size_t>(r)].position, cos + r * half, sin + r * half);
  });

  executor.computed(Operation::kEmbedding, -1, static_cast<std::int64_t>(rows.size()), x, d_model);

  const ForwardPass pass{executor, cache, rows, cos, sin};
  for (const Block& block : blocks) block.forward(pass, x, d_model);
  for (const Run& run : runs) {
    cache.set_length(run.sequence, run.first_position + static_cast<std::int64_t>(run.tokens.size()));
  }

  float* last = executor.buffer(Executor::Buffer::kNormed, rows.size() * static_cast<std::size_t>(d_model));
  const std::int64_t n = gather_logit_rows(runs, x, last);
  logits.resize(static_cast<std::size_t>(n) * static_cast<std::size_t>(config.vocab_size));
  if (n == 0) return;
  norm.forward(executor, last, n, last);
  executor.computed(Operation::kFinalNorm, -1, n, last, d_model);
  head.forward(executor, last, n, logits.data());
  executor.computed(Operation::kLogits, -1, n, logits.data(), config.vocab_size);
}

void Model::forward(std::span<const Run> runs, SequenceCache& cache, Executor& executor,
                    std::vector<float>& logits) const {
  state_->check_runs(runs, cache, executor);
  with_defined_floats([&] { state_->forward(runs, cache, executor, logits); });
}

}  // namespace kvasir
