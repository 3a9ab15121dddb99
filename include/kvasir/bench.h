// How fast a model runs on this machine, and how near that is to what the machine can do.
#ifndef KVASIR_BENCH_H_
#define KVASIR_BENCH_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/config.h"

namespace kvasir {

// Every combination is measured. Prefill runs one sequence, decoding each of the batch sizes.
struct BenchOptions {
  std::vector<std::int64_t> prefill = {512};  // tokens of the prompt; 0 measures none
  std::vector<std::int64_t> decode = {128};   // tokens of each sequence, one after another; 0 measures none
  std::vector<std::int64_t> depths = {0};     // positions that are in the cache already
  std::vector<std::int64_t> batches = {1};    // sequences that decode together
  std::vector<int> threads = {0};             // as Executor takes them
  std::int64_t repetitions = 5;               // of each measurement, after a warm-up
  std::int64_t prefill_chunk = 512;           // prompt tokens of one forward pass
  Activations activations = Activations::kDefault;
  KvType kv_type = KvType::kF16;
};

struct Spread {
  double median, least, most;
};
// Of at least one value; the median of an even number is the mean of the middle two.
Spread spread_of(std::span<const double> values);

struct BenchRow {
  enum class Kind { kPrefill, kDecode };
  Kind kind;
  std::int64_t tokens;  // of each sequence
  std::int64_t depth;
  std::int64_t batch;
  int threads;
  std::vector<double> seconds;  // of each repetition

  // Of one repetition. Bytes: all weights, and every key and value that the forward pass can see, once a
  // forward pass. Operations: two for a multiply-add of the linear layers and of attention.
  double bytes_read;
  double operations;

  // Measured in turn with the repetitions, with as many threads: bytes a second from memory; operations a
  // second, of the instructions that the linear layers use.
  Spread read_peak;
  Spread operations_peak;

  Spread tokens_per_second() const;
  double bytes_per_second() const;  // by the median time, as are the others
  double operations_per_second() const;
  double read_share() const;  // of the peak
  double operations_share() const;
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

// Token ids are fixed and pseudo-random; nothing is sampled. Error(kInvalidArgument), before any weight is
// loaded, if an option cannot be or a depth and tokens do not fit the model's context; else as
// LanguageModel::load.
BenchReport bench(const std::string& path, const BenchOptions& options, const BenchProgress& progress = {});

}  // namespace kvasir

#endif  // KVASIR_BENCH_H_
