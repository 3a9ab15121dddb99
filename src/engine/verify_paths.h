// The paths that kvasir verify compares: each is a way of cutting prompts into forward passes.
#ifndef KVASIR_ENGINE_VERIFY_PATHS_H_
#define KVASIR_ENGINE_VERIFY_PATHS_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "kvasir/executor.h"
#include "kvasir/kv_cache.h"
#include "kvasir/model.h"
#include "kvasir/observer.h"
#include "kvasir/paged_kv_cache.h"
#include "kvasir/token.h"

namespace kvasir {

using Prompts = std::span<const std::vector<TokenId>>;

// The intermediate results of a forward pass, numbered in the order in which they are computed.
class Stages {
 public:
  explicit Stages(std::int32_t n_layer) : n_layer_(static_cast<std::size_t>(n_layer)) {}
  std::size_t count() const { return 1 + n_layer_ * kInLayer + 2; }
  std::size_t logits() const { return count() - 1; }
  std::size_t index(Operation operation, std::int32_t layer) const;
  std::pair<Operation, std::int32_t> at(std::size_t stage) const;

 private:
  static constexpr std::size_t kInLayer = static_cast<std::size_t>(Operation::kFfnResidual);
  std::size_t n_layer_;
};

// Where a row of numbers belongs.
struct RowPlace {
  std::size_t prompt;
  std::int64_t position;
  std::size_t stage;
};

class RowSink {
 public:
  virtual ~RowSink() = default;
  virtual void row(const RowPlace& place, std::span<const float> values) = 0;
  // So many rows, counted or not, have passed a layer.
  virtual void passed_layer(std::int64_t /*rows*/) {}
};

// Runs prompts through a model piece by piece, and gives what the model computes to a sink.
class PathDriver : private ForwardObserver {
 public:
  PathDriver(const Model& model, Executor& executor, KvType kv_type, Prompts prompts, RowSink& sink);
  ~PathDriver() override;
  PathDriver(const PathDriver&) = delete;
  PathDriver& operator=(const PathDriver&) = delete;

  // Positions [begin, end) of a prompt, in one sequence of the cache.
  struct Piece {
    std::size_t prompt;
    std::int64_t begin, end;
    std::int32_t sequence = 0;
    std::optional<std::int64_t> counted = std::nullopt;  // so many of the last rows; nullopt: all
    std::span<const TokenId> instead = {};               // of the prompt's own tokens, if not empty
    std::int64_t wrong = 0;                              // so many of the last rows do not count after all
  };

  std::int64_t length(std::size_t prompt) const { return static_cast<std::int64_t>(prompts_[prompt].size()); }
  std::int32_t vocab_size() const { return model_.config().vocab_size; }
  const std::vector<TokenId>& tokens(std::size_t prompt) const { return prompts_[prompt]; }

  void new_cache(std::size_t sequences, std::int64_t positions);
  // Sequences are opened in it, and get blocks for a piece when it is run.
  PagedKvCache& new_paged_cache(std::size_t sequences, std::int64_t blocks);
  // Forgets what is in the cache beyond so many positions.
  void keep(std::int32_t sequence, std::int64_t length) { cache_->set_length(sequence, length); }
  void forward(std::span<const Piece> pieces);  // in one pass
  void forward(const Piece& piece) { forward(std::span(&piece, 1)); }
  // The pieces of at most `chunk` tokens that lead from begin to the prompt's end, one pass each.
  void in_chunks(std::size_t prompt, std::int64_t begin, std::int64_t chunk, std::int32_t sequence = 0);

 private:
  void computed(Operation operation, std::int32_t layer, std::int64_t rows, const float* values,
                std::int64_t width) override;

  const Model& model_;
  Executor& executor_;
  KvType kv_type_;
  Prompts prompts_;
  RowSink& sink_;
  Stages stages_;
  std::unique_ptr<SequenceCache> cache_;
  PagedKvCache* paged_ = nullptr;  // the cache, if it is one
  struct Row {
    std::size_t prompt;
    std::int64_t position;
    bool counted;
  };
  std::vector<Row> rows_;        // of the pass in hand
  std::vector<Row> logit_rows_;  // those whose logits were asked for
  std::vector<float> logits_;
};

// The slow path: every position comes from a run of its own, from position 0, in a fresh cache.
void run_every_step(PathDriver& driver, std::size_t prompt);
// The same numbers in one such run, for prompts whose square is too long.
void run_once(PathDriver& driver, std::size_t prompt);

// With which kernel sets a path is run even where not every path meets every set.
enum class Reach { kFastestSet, kVectorSets, kEverySet };

struct Path {
  const char* name;
  Reach reach;
  bool quadratic;  // only for short prompts
  void (*run)(PathDriver& driver, std::span<const std::size_t> prompts);
};

// All of them. A new way of running a model gets its line here.
std::span<const Path> verify_paths();

}  // namespace kvasir

#endif  // KVASIR_ENGINE_VERIFY_PATHS_H_
