// The promise, proved on one model and one machine: the same bits on every path.
#ifndef KVASIR_VERIFY_H_
#define KVASIR_VERIFY_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "kvasir/config.h"
#include "kvasir/language_model.h"
#include "kvasir/model.h"
#include "kvasir/observer.h"
#include "kvasir/token.h"

namespace kvasir {

struct VerifyOptions {
  KvType kv_type = KvType::kF16;
  int threads = 0;     // to try besides 1, 2 and 3; 0: as many as the process may use
  bool quick = false;  // every path and every kernel set, but not each with each
  // For tests: this kernel of the fastest set flips the lowest bit of one number, in the call that works on
  // the last position of the first prompt in the middle layer.
  std::string flip_bit = {};
};

// Built-in prompts, the same on every machine; each cut to so many tokens that it fits the model.
std::vector<std::vector<TokenId>> verify_prompts(const LanguageModel& model, bool quick);

// Where a path parts from the slow path first: by layer, then operation, then prompt and position.
struct VerifyDifference {
  std::size_t prompt = 0;
  std::int64_t position = 0;
  std::int32_t layer = -1;  // -1: before the first layer or after the last
  Operation operation = Operation::kEmbedding;
  std::int64_t logit_rows =
      0;  // positions whose logits differ; may be none, if a difference got lost on its way

  // What comparing that row's values gives when the path is run again; only of the first path that differs.
  struct Again {
    std::int64_t values;     // of the row
    std::int64_t different;  // 0: the path gave the right bits this time
    double largest;          // difference, NaN if it is one
  };
  std::optional<Again> again = std::nullopt;
};

struct VerifiedPath {
  std::string name;
  std::string kernel_set;
  int threads;
  std::int64_t positions;  // of all prompts, counted as often as they were computed
  std::int64_t logits;     // values compared
  std::int64_t intermediates;
  std::optional<VerifyDifference> difference;
};

struct VerifyReport {
  struct Prompt {
    std::vector<TokenId> tokens;
    bool every_step;            // whether each position came from a run of its own
    std::string logits_sha256;  // of the slow path's, as `kvasir logits --sha256` gives it
  };
  std::vector<Prompt> prompts;
  std::vector<VerifiedPath> paths;
  std::string prompts_sha256;  // of each prompt's number of tokens and their ids, all int32, little-endian
  std::string logits_sha256;   // of the prompts' logits_sha256, as text, one after another

  std::int64_t differing() const;  // paths
};

struct VerifyProgress {
  std::function<void(double share)> slow_path;             // 0 to 1; from any thread, one at a time
  std::function<void(const VerifiedPath&)> path_compared;  // in the order of the report
};

// Runs the prompts through the slow path (no cache, scalar kernels, one thread) and every other one, and
// compares every logit and every intermediate result, by SHA-256 of each row.
// Fails closed: Error(kRuntime) if the logits of the slow path are not finite, all equal or the same at every
// position, or if fewer values were compared than should have been. Error(kInvalidArgument): no prompt, one
// without tokens or with an id outside the vocabulary, or an unknown kernel in flip_bit. Error(kCapacity): a
// prompt that does not fit the model's context.
VerifyReport verify(const Model& model, std::span<const std::vector<TokenId>> prompts,
                    const VerifyOptions& options, const VerifyProgress& progress = {});

}  // namespace kvasir

#endif  // KVASIR_VERIFY_H_
