#include "kvasir/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>

#include "base/tensor_type.h"
#include "engine/measure.h"
#include "engine/timed_requests.h"
#include "formats/gguf.h"
#include "kernels/kernels.h"
#include "kernels/peaks.h"
#include "kvasir/error.h"
#include "kvasir/executor.h"
#include "kvasir/kv_cache.h"
#include "kvasir/language_model.h"
#include "kvasir/sequence_runner.h"
#include "model/hyperparameters.h"

namespace kvasir {
namespace {

// ---- Options

void check_options(const BenchOptions& options) {
  check_list("prefill", options.prefill, 0);
  check_list("decode", options.decode, 0);
  check_list("depth", options.depths, 0);
  check_list("batch", options.batches, 1);
  check_list("requests", options.requests, 0);
  check_list("request_prompt", std::array{options.request_prompt}, 1);
  check_list("request_new", std::array{options.request_new}, 1);
  check_list("repetitions", std::array{options.repetitions}, 1);
  check_list("prefill_chunk", std::array{options.prefill_chunk}, 1);
  if (options.threads.empty()) throw Error(ErrorKind::kInvalidArgument, "threads: the list is empty");
}

void check_fits(const BenchOptions& options, const Config& config) {
  const std::int64_t depth = std::ranges::max(options.depths);
  for (const auto* tokens : {&options.prefill, &options.decode}) {
    const std::int64_t most = std::ranges::max(*tokens);
    if (depth + most > config.max_seq) {
      throw Error(ErrorKind::kInvalidArgument,
                  fmt::format("depth {} and {} tokens are more than the model's context of {} positions",
                              depth, most, config.max_seq));
    }
  }
  if (std::ranges::max(options.requests) > 0 &&
      options.request_prompt + options.request_new > config.max_seq) {
    throw Error(
        ErrorKind::kInvalidArgument,
        fmt::format("requests with a prompt of {} and {} new tokens are more than the model's context "
                    "of {} positions",
                    options.request_prompt, options.request_new, config.max_seq));
  }
}

// ---- What a measurement has to read and to compute

// Of most weights of the blocks' linear layers.
kernels::InputKind input_kind_of(const GgufFile& file, Activations activations) {
  if (activations == Activations::kF32) return kernels::InputKind::kFloat;
  std::array<std::uint64_t, 3> values{};
  for (const GgufTensor& tensor : file.tensors()) {
    if (tensor.shape.size() != 2 || !tensor.name.starts_with("blk.")) continue;
    values[static_cast<std::size_t>(kernels::input_kind(tensor.type))] += tensor.shape[0] * tensor.shape[1];
  }
  return static_cast<kernels::InputKind>(std::ranges::max_element(values) - values.begin());
}

std::string_view name_of(kernels::InputKind inputs) {
  switch (inputs) {
    case kernels::InputKind::kFloat:
      return "float";
    case kernels::InputKind::kBF16:
      return "bf16";
    case kernels::InputKind::kInt8:
      return "int8";
  }
  return "";
}

// Multiply-adds of all linear layers but the last for one token, and of the last for one row of logits.
double layer_products(const Config& config) {
  const double heads = config.n_head, kv_heads = config.n_kv_head, head_dim = config.head_dim;
  const double attention = config.d_model * head_dim * (2 * heads + 2 * kv_heads);
  return config.n_layer * (attention + 3.0 * config.d_model * config.d_ff);
}
double head_products(const Config& config) { return 1.0 * config.vocab_size * config.d_model; }

// Of the tokens from a position on, of which so many get logits: two for a multiply-add. Attention has two of
// these a dimension of a head and position that is seen: for the score, and for the weighted value.
double operations_of(const Config& config, std::int64_t first_position, std::int64_t count,
                     std::int64_t logits) {
  const double mean_seen = static_cast<double>(2 * first_position + count + 1) / 2;
  const double attention = 2.0 * config.n_layer * config.n_head * config.head_dim * mean_seen;
  return 2 * (static_cast<double>(count) * (layer_products(config) + attention) +
              static_cast<double>(logits) * head_products(config));
}

double kv_bytes(const Config& config, KvType type, std::int64_t positions) {
  return 2.0 * config.n_layer * config.n_kv_head * config.head_dim *
         static_cast<double>(kernels::kv_type_bytes(type)) * static_cast<double>(positions);
}

// ---- Measuring

struct Measurement {
  BenchRow::Kind kind;
  std::int64_t tokens, depth, batch;
  Executor* executor;
};

// What forward passes have read and computed.
struct Work {
  double bytes = 0, operations = 0;
};

EngineOptions engine_options(const BenchOptions& options, std::int64_t requests) {
  EngineOptions engine;
  engine.kv_blocks = requests * PagedKvCache::blocks_of(options.request_prompt + options.request_new);
  engine.kv_type = options.kv_type;
  engine.share_prefixes = false;
  engine.max_running = static_cast<std::int32_t>(requests);
  engine.max_waiting = requests;
  engine.step_tokens = std::max(options.prefill_chunk, requests);
  return engine;
}

// Requests that come to an engine all at once, the same ones in each repetition.
class RequestBench {
 public:
  RequestBench(const LanguageModel& model, const BenchOptions& options, std::int64_t requests,
               Executor& executor)
      : new_tokens_(options.request_new), requests_(model, executor, engine_options(options, requests)) {
    for (std::int64_t i = 0; i < requests; ++i) {
      prompts_.push_back(random_tokens(options.request_prompt, model.model().config().vocab_size,
                                       static_cast<std::uint32_t>(i + 1)));
    }
  }

  // Until the last token of all has come.
  void run(BenchRow::Requests& told) {
    const EngineMetrics before = requests_.engine().metrics();
    const std::size_t first = requests_.submitted();
    for (const auto& prompt : prompts_) requests_.submit(prompt, new_tokens_);
    while (requests_.ended() < requests_.submitted()) requests_.step();
    tell_decoding(first, told);
    const EngineMetrics after = requests_.engine().metrics();
    told.schedule_seconds.push_back(after.schedule_seconds - before.schedule_seconds);
    told.draw_seconds.push_back(after.draw_seconds - before.draw_seconds);
  }

 private:
  void tell_decoding(std::size_t first, BenchRow::Requests& told) const {
    TimedRequests::Clock::time_point begin{}, end{};
    for (std::size_t i = first; i < requests_.submitted(); ++i) {
      begin = std::max(begin, requests_.times(i).front());
      end = std::max(end, requests_.times(i).back());
    }
    told.new_tokens = new_tokens_;
    told.decode_tokens = 0;
    for (std::size_t i = first; i < requests_.submitted(); ++i) {
      told.decode_tokens +=
          std::ranges::count_if(requests_.times(i), [&](auto time) { return time > begin; });
    }
    told.decode_seconds.push_back(seconds_between(begin, end));
  }

  std::int64_t new_tokens_;
  TimedRequests requests_;
  std::vector<std::vector<TokenId>> prompts_;
};

// One model with the caches that its measurements use: filled once for each depth and batch.
class Bench {
 public:
  Bench(const LanguageModel& model, const BenchOptions& options, kernels::InputKind inputs, Executor& filler)
      : language_model_(model), model_(model.model()), options_(options), inputs_(inputs), filler_(filler) {
    const std::int64_t most =
        std::max({std::ranges::max(options.prefill), std::ranges::max(options.decode), std::int64_t{1}});
    capacity_ = std::min<std::int64_t>(std::ranges::max(options.depths) + most, model_.config().max_seq);
    tokens_ = random_tokens(capacity_, model_.config().vocab_size);
  }

  // before_each: called before each repetition.
  BenchRow measure(const Measurement& what, const std::function<void()>& before_each) {
    BenchRow row{what.kind, what.tokens, what.depth, what.batch, what.executor->threads(), {}, {}, 0, {}, {}};
    if (what.kind == BenchRow::Kind::kRequests) {
      measure_requests(what, before_each, row);
    } else {
      measure_passes(what, before_each, row);
    }
    return row;
  }

 private:
  void measure_passes(const Measurement& what, const std::function<void()>& before_each, BenchRow& row) {
    fill(what.batch, what.depth);
    run(what, what.kind == BenchRow::Kind::kPrefill ? what.tokens : 1, nullptr);  // a warm-up
    Work work;
    repeat(*what.executor, before_each, row, [&] {
      work = {};
      run(what, what.tokens, &work);
    });
    row.bytes_read = work.bytes;
    row.operations = work.operations;
  }

  void measure_requests(const Measurement& what, const std::function<void()>& before_each, BenchRow& row) {
    cache_.reset();  // before the engine's takes memory
    RequestBench requests(language_model_, options_, what.batch, *what.executor);
    BenchRow::Requests warm_up{};
    requests.run(warm_up);
    row.requests.emplace();
    repeat(*what.executor, before_each, row, [&] { requests.run(*row.requests); });
    row.operations = static_cast<double>(what.batch) *
                     operations_of(model_.config(), 0, what.tokens - 1, options_.request_new);
  }

  // Times it, and the peaks in turn with it.
  template <class Once>
  void repeat(Executor& executor, const std::function<void()>& before_each, BenchRow& row, Once once) {
    std::vector<double> read, operations;
    const auto measure_peaks = [&] {
      read.push_back(meter_.read_bandwidth(executor.pool()));
      operations.push_back(meter_.operations(executor.kernels(), inputs_, executor.pool()));
    };
    for (std::int64_t i = 0; i < options_.repetitions; ++i) {
      before_each();
      measure_peaks();
      const auto start = std::chrono::steady_clock::now();
      once();
      row.seconds.push_back(seconds_since(start));
    }
    measure_peaks();
    row.read_peak = spread_of(read);
    row.operations_peak = spread_of(operations);
  }

  // A cache whose `batch` sequences hold `depth` positions.
  void fill(std::int64_t batch, std::int64_t depth) {
    if (!cache_.has_value() || cache_->batch() != batch) {
      Config config = model_.config();
      config.max_seq = static_cast<std::int32_t>(capacity_);
      cache_.reset();  // before the next one takes memory
      cache_.emplace(config, static_cast<std::int32_t>(batch), options_.kv_type);
    }
    for (std::int32_t sequence = 0; sequence < cache_->batch(); ++sequence) {
      prefill(sequence, cache_->length(sequence), depth, filler_, nullptr);
      cache_->set_length(sequence, depth);
    }
  }

  void run(const Measurement& what, std::int64_t tokens, Work* work) {
    if (what.kind == BenchRow::Kind::kPrefill) {
      prefill(0, what.depth, what.depth + tokens, *what.executor, work);
    } else {
      decode(what.depth, what.depth + tokens, *what.executor, work);
    }
  }

  // Positions [begin, end) of one sequence, chunk by chunk.
  void prefill(std::int32_t sequence, std::int64_t begin, std::int64_t end, Executor& executor, Work* work) {
    for (std::int64_t from = begin; from < end; from += options_.prefill_chunk) {
      const std::int64_t to = std::min(from + options_.prefill_chunk, end);
      forward(std::array{Run{sequence, tokens_of(from, to), from, to == end ? 1 : 0}}, executor, work);
    }
  }

  // Positions [begin, end) of all sequences together, one after another.
  void decode(std::int64_t begin, std::int64_t end, Executor& executor, Work* work) {
    std::vector<Run> runs(static_cast<std::size_t>(cache_->batch()));
    for (std::int64_t position = begin; position < end; ++position) {
      for (std::size_t sequence = 0; sequence < runs.size(); ++sequence) {
        runs[sequence] = {static_cast<std::int32_t>(sequence), tokens_of(position, position + 1), position,
                          1};
      }
      forward(runs, executor, work);
    }
  }

  // work: nullptr if it is not counted.
  void forward(std::span<const Run> runs, Executor& executor, Work* work) {
    model_.forward(runs, *cache_, executor, logits_);
    if (work == nullptr) return;
    work->bytes += static_cast<double>(model_.weight_bytes());
    for (const Run& run : runs) {
      const auto count = static_cast<std::int64_t>(run.tokens.size());
      work->bytes += kv_bytes(model_.config(), options_.kv_type, run.first_position + count);
      work->operations += operations_of(model_.config(), run.first_position, count, run.n_logits);
    }
  }

  std::span<const TokenId> tokens_of(std::int64_t begin, std::int64_t end) const {
    return std::span(tokens_).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
  }

  const LanguageModel& language_model_;
  const Model& model_;  // of it
  const BenchOptions& options_;
  kernels::InputKind inputs_;
  Executor& filler_;
  std::int64_t capacity_;
  std::vector<TokenId> tokens_;  // one a position, of every sequence
  std::optional<KvCache> cache_;
  std::vector<float> logits_;
  kernels::PeakMeter meter_;
};

// Those of one cache one after another, those that differ in threads alone side by side.
std::vector<Measurement> plan(const BenchOptions& options, std::span<Executor> executors) {
  std::vector<Measurement> all;
  const auto add = [&](BenchRow::Kind kind, const std::vector<std::int64_t>& lengths, std::int64_t depth,
                       std::int64_t batch) {
    for (const std::int64_t tokens : lengths) {
      for (Executor& executor : executors) {
        if (tokens > 0) all.push_back({kind, tokens, depth, batch, &executor});
      }
    }
  };
  for (const std::int64_t depth : options.depths) {
    add(BenchRow::Kind::kPrefill, options.prefill, depth, 1);
  }
  for (const std::int64_t batch : options.batches) {
    for (const std::int64_t depth : options.depths)
      add(BenchRow::Kind::kDecode, options.decode, depth, batch);
  }
  for (const std::int64_t requests : options.requests) {
    for (Executor& executor : executors) {
      if (requests == 0) continue;
      const std::int64_t tokens = options.request_prompt + options.request_new;
      all.push_back({BenchRow::Kind::kRequests, tokens, 0, requests, &executor});
    }
  }
  if (all.empty()) {
    throw Error(ErrorKind::kInvalidArgument, "prefill, decode and requests are 0: nothing to measure");
  }
  return all;
}

// ---- Told

Spread rates_of(std::int64_t tokens, std::span<const double> seconds) {
  std::vector<double> rates;
  for (const double time : seconds) rates.push_back(static_cast<double>(tokens) / time);
  return spread_of(rates);
}

double median_share(std::span<const double> parts, std::span<const double> wholes) {
  std::vector<double> shares;
  for (std::size_t i = 0; i < parts.size(); ++i) shares.push_back(parts[i] / wholes[i]);
  return spread_of(shares).median;
}

}  // namespace

Spread spread_of(std::span<const double> values) {
  return {percentile(values, 0.5), percentile(values, 0.0), percentile(values, 1.0)};
}

Spread BenchRow::tokens_per_second() const { return rates_of(tokens * batch, seconds); }
std::optional<double> BenchRow::bytes_per_second() const {
  if (!bytes_read) return std::nullopt;
  return *bytes_read / spread_of(seconds).median;
}
double BenchRow::operations_per_second() const { return operations / spread_of(seconds).median; }
std::optional<double> BenchRow::read_share() const {
  if (!bytes_read) return std::nullopt;
  return *bytes_per_second() / read_peak.median;
}
double BenchRow::operations_share() const { return operations_per_second() / operations_peak.median; }
std::optional<double> BenchRow::schedule_share() const {
  if (!requests) return std::nullopt;
  return median_share(requests->schedule_seconds, seconds);
}
std::optional<double> BenchRow::draw_share() const {
  if (!requests) return std::nullopt;
  return median_share(requests->draw_seconds, seconds);
}
std::optional<Spread> BenchRow::Requests::decode_tokens_per_second() const {
  if (decode_tokens == 0) return std::nullopt;
  return rates_of(decode_tokens, decode_seconds);
}

BenchReport bench(const std::string& path, const BenchOptions& options, const BenchProgress& progress) {
  check_options(options);
  std::vector<Executor> executors;
  for (const int threads : options.threads) executors.emplace_back(threads);
  const std::vector<Measurement> measurements = plan(options, executors);
  Executor& largest = *std::ranges::max_element(executors, {}, &Executor::threads);
  kernels::InputKind inputs{};
  {
    const GgufFile file = GgufFile::open(path);
    check_fits(options, config_from_gguf(file));
    inputs = input_kind_of(file, options.activations);
  }

  const auto start = std::chrono::steady_clock::now();
  const LanguageModel model = LanguageModel::load(path, options.activations, largest);
  const double load_seconds = seconds_since(start);
  SequenceRunner(model.model(), largest, 1, 1, options.kv_type, {}).append(std::array{TokenId{0}});
  const double first_token_seconds = seconds_since(start);

  BenchReport report{path,
                     largest.kernels().name,
                     name_of(inputs),
                     model.model().weight_bytes(),
                     load_seconds,
                     first_token_seconds,
                     {}};
  Bench run(model, options, inputs, largest);
  const std::int64_t all = static_cast<std::int64_t>(measurements.size()) * options.repetitions;
  std::int64_t done = 0;
  for (const Measurement& measurement : measurements) {
    report.rows.push_back(run.measure(measurement, [&] {
      if (progress) progress(done++, all);
    }));
  }
  return report;
}

}  // namespace kvasir
