// How fast a model runs on this machine, and how near that is to what the machine can do.
#ifndef KVASIR_BENCH_H_
#define KVASIR_BENCH_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/config.h"

namespace kvasir {

// Every combination is measured. Prefill runs one sequence, decoding each of the batch sizes; requests, which
// begin at depth 0, run on an engine that all of them reach at once, and end by their number of tokens.
struct BenchOptions {
  std::vector<std::int64_t> prefill = {512};  // tokens of the prompt; 0 measures none
  std::vector<std::int64_t> decode = {128};   // tokens of each sequence, one after another; 0 measures none
  std::vector<std::int64_t> depths = {0};     // positions that are in the cache already
  std::vector<std::int64_t> batches = {1};    // sequences that decode together
  std::vector<std::int64_t> requests = {0};   // that run together; 0 measures none
  std::int64_t request_prompt = 128;          // tokens of each
  std::int64_t request_new = 64;              // tokens that each gets
  std::vector<int> threads = {0};             // as Executor takes them
  std::int64_t repetitions = 5;               // of each measurement, after a warm-up
  std::int64_t prefill_chunk = 512;           // prompt tokens of one forward pass; of an engine, all tokens
  Activations activations = Activations::kDefault;
  KvType kv_type = KvType::kF16;
};

struct Spread {
  double median, least, most;
};
// Of at least one value; the median of an even number is the mean of the middle two.
Spread spread_of(std::span<const double> values);

struct BenchRow {
  enum class Kind { kPrefill, kDecode, kRequests };

  struct Requests {
    std::int64_t new_tokens;     // of each
    std::int64_t decode_tokens;  // of all, that came once each had its first
    // Of each repetition: from then to the last token; and in all of it, to choose what runs in a step, and
    // to draw tokens and hand out their text.
    std::vector<double> decode_seconds, schedule_seconds, draw_seconds;

    std::optional<Spread> decode_tokens_per_second() const;  // nothing if there were none
  };

  Kind kind;
  std::int64_t tokens;  // of each sequence; of a request, those of the prompt and the new ones
  std::int64_t depth;
  std::int64_t batch;  // sequences or requests that run together
  int threads;
  std::vector<double> seconds;  // of each repetition

  // Of one repetition. Bytes: all weights, and every key and value that the forward pass can see, once a
  // forward pass; nothing for requests, whose passes the engine chooses. Operations: two for a multiply-add
  // of the linear layers and of attention.
  std::optional<double> bytes_read;
  double operations;

  // Measured in turn with the repetitions, with as many threads: bytes a second from memory; operations a
  // second, of the instructions that the linear layers use.
  Spread read_peak;
  Spread operations_peak;

  std::optional<Requests> requests = {};  // of kRequests alone

  Spread tokens_per_second() const;
  std::optional<double> bytes_per_second() const;  // by the median time, as are operations
  double operations_per_second() const;
  std::optional<double> read_share() const;  // of the peak
  double operations_share() const;
  std::optional<double> schedule_share() const;  // of the time; median of the repetitions
  std::optional<double> draw_share() const;
};

struct BenchReport {
  std::string model;           // path
  std::string_view kernels;    // name of the kernel set
  std::string_view products;   // what the layers' linear products are formed of: "float", "bf16" or "int8"
  std::size_t weight_bytes;    // as packed
  double load_seconds;         // from opening the file, with the largest number of threads
  double first_token_seconds;  // the same and one forward pass of one token
  std::vector<BenchRow> rows;
};

// Called before each repetition, with how many of all measurements' are done and how many there are.
using BenchProgress = std::function<void(std::int64_t done, std::int64_t all)>;

// Token ids are fixed and pseudo-random, others for each request; only requests draw tokens, the most
// probable ones. Error(kInvalidArgument), before any weight is loaded, if an option cannot be, or a depth and
// tokens or a request do not fit the model's context; else as LanguageModel::load and Engine.
BenchReport bench(const std::string& path, const BenchOptions& options, const BenchProgress& progress = {});

}  // namespace kvasir

#endif  // KVASIR_BENCH_H_
