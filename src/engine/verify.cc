#include "kvasir/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <exception>
#include <memory>
#include <mutex>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "base/sha256.h"
#include "base/thread_pool.h"
#include "engine/verify_paths.h"
#include "kernels/faulty.h"
#include "kernels/kernels.h"
#include "kvasir/error.h"
#include "kvasir/executor.h"

namespace kvasir {
namespace {

// Up to so many tokens, a prompt takes the paths whose cost grows with the square of its length, and those of
// the scalar kernels.
constexpr std::size_t kShortPrompt = 8;
constexpr std::int64_t kFewestLogits = 1000;  // an agreement of fewer says nothing

using Digest = std::array<std::byte, 32>;

Digest digest_of(std::span<const float> values) {
  Sha256 hash;
  hash.update(std::as_bytes(values));
  return hash.digest();
}

[[noreturn]] void fail(const std::string& message) { throw Error(ErrorKind::kRuntime, message); }

// What the slow path gave: one digest for each row of each intermediate result.
class Ledger {
 public:
  Ledger(Prompts prompts, std::size_t stages) : stages_(stages) {
    for (const auto& prompt : prompts) digests_.emplace_back(prompt.size() * stages);
  }
  Digest& at(const RowPlace& place) { return digests_[place.prompt][index(place)]; }
  const Digest& at(const RowPlace& place) const { return digests_[place.prompt][index(place)]; }
  std::size_t index(const RowPlace& place) const {
    return static_cast<std::size_t>(place.position) * stages_ + place.stage;
  }
  std::size_t size(std::size_t prompt) const { return digests_[prompt].size(); }

 private:
  std::size_t stages_;
  std::vector<std::vector<Digest>> digests_;  // [prompt][position * stages + stage]
};

// Writes the ledger, and refuses logits whose agreement would prove nothing.
class Recorder : public RowSink {
 public:
  Recorder(Ledger& ledger, const Stages& stages, std::function<void(std::int64_t)> passed_layer)
      : ledger_(ledger), stages_(stages), passed_layer_(std::move(passed_layer)) {}

  void row(const RowPlace& place, std::span<const float> values) override {
    ledger_.at(place) = digest_of(values);
    if (place.stage != stages_.logits()) return;
    check(place, values);
    logits_.update(std::as_bytes(values));
  }
  void passed_layer(std::int64_t rows) override { passed_layer_(rows); }
  std::string logits_sha256() { return logits_.hex_digest(); }

 private:
  static void check(const RowPlace& place, std::span<const float> logits) {
    const auto where = [&] {
      return fmt::format("prompt {}, position {}", place.prompt + 1, place.position);
    };
    const auto finite = [](float value) { return std::isfinite(value); };
    if (!std::all_of(logits.begin(), logits.end(), finite)) {
      fail(where() + ": some logits are not finite; that paths agree on them would prove nothing");
    }
    const auto [low, high] = std::minmax_element(logits.begin(), logits.end());
    if (*low == *high) {
      fail(where() + ": all logits are equal; that paths agree on them would prove nothing");
    }
  }

  Ledger& ledger_;
  const Stages& stages_;
  std::function<void(std::int64_t)> passed_layer_;
  Sha256 logits_;
};

// Holds a path against the ledger.
class Comparer : public RowSink {
 public:
  Comparer(const Ledger& ledger, const Stages& stages, Prompts prompts) : ledger_(ledger), stages_(stages) {
    for (std::size_t prompt = 0; prompt < prompts.size(); ++prompt)
      seen_.emplace_back(ledger.size(prompt), false);
  }

  void row(const RowPlace& place, std::span<const float> values) override {
    seen_[place.prompt][ledger_.index(place)] = true;
    const bool logits = place.stage == stages_.logits();
    (logits ? logits_ : intermediates_) += static_cast<std::int64_t>(values.size());
    if (logits) ++positions_;
    if (digest_of(values) == ledger_.at(place)) return;
    if (logits) ++different_logits_;
    if (!first_.has_value() || order(place) < order(*first_)) first_ = place;
  }

  const std::optional<RowPlace>& first_difference() const { return first_; }
  bool saw_all(std::size_t prompt) const {
    return std::all_of(seen_[prompt].begin(), seen_[prompt].end(), [](bool seen) { return seen; });
  }
  std::int64_t positions() const { return positions_; }
  std::int64_t logits() const { return logits_; }
  std::int64_t intermediates() const { return intermediates_; }
  std::int64_t different_logits() const { return different_logits_; }

 private:
  static std::tuple<std::size_t, std::size_t, std::int64_t> order(const RowPlace& place) {
    return {place.stage, place.prompt, place.position};
  }

  const Ledger& ledger_;
  const Stages& stages_;
  std::vector<std::vector<bool>> seen_;  // as in the ledger
  std::optional<RowPlace> first_;
  std::int64_t positions_ = 0, logits_ = 0, intermediates_ = 0, different_logits_ = 0;
};

// Keeps one row; of several, the first that is not what the ledger says.
class Capture : public RowSink {
 public:
  Capture(const Ledger& ledger, const RowPlace& place) : ledger_(ledger), place_(place) {}
  void row(const RowPlace& place, std::span<const float> values) override {
    if (ledger_.index(place) != ledger_.index(place_) || place.prompt != place_.prompt || differs_) return;
    differs_ = digest_of(values) != ledger_.at(place);
    values_.assign(values.begin(), values.end());
  }
  bool differs() const { return differs_; }
  const std::vector<float>& values() const { return values_; }

 private:
  const Ledger& ledger_;
  RowPlace place_;
  bool differs_ = false;
  std::vector<float> values_;
};

VerifyDifference::Again compare(const std::vector<float>& expected, const std::vector<float>& got) {
  VerifyDifference::Again again{static_cast<std::int64_t>(expected.size()), 0, 0.0};
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (std::bit_cast<std::uint32_t>(expected[i]) == std::bit_cast<std::uint32_t>(got[i])) continue;
    ++again.different;
    const double difference = std::fabs(static_cast<double>(got[i]) - static_cast<double>(expected[i]));
    if (std::isnan(difference) || difference > again.largest) again.largest = difference;
  }
  return again;
}

const kernels::FaultyKernel* find_fault(const std::string& kernel) {
  if (kernel.empty()) return nullptr;
  for (const kernels::FaultyKernel& known : kernels::faulty_kernels()) {
    if (known.name == kernel) return &known;
  }
  throw Error(ErrorKind::kInvalidArgument, fmt::format("flip_bit: there is no kernel \"{}\"", kernel));
}

class Verifier {
 public:
  Verifier(const Model& model, Prompts prompts, const VerifyOptions& options, const VerifyProgress& progress)
      : model_(model),
        prompts_(prompts),
        options_(options),
        progress_(progress),
        stages_(model.config().n_layer),
        ledger_(prompts, stages_.count()),
        fault_(find_fault(options.flip_bit)),
        usual_threads_(options.threads == 0 ? usable_processors() : options.threads) {}

  VerifyReport run() {
    run_slow_path();
    check_slow_path();
    find_kernel_sets();
    for (const kernels::KernelSet* set : sets_) run_kernel_set(*set);
    if (report_.paths.empty()) fail("no path was compared");
    return std::move(report_);
  }

 private:
  bool is_short(std::size_t prompt) const { return prompts_[prompt].size() <= kShortPrompt; }

  void run_slow_path();
  std::string record(std::size_t prompt, const std::function<void(std::int64_t)>& passed_layer);
  void check_slow_path();
  void find_kernel_sets();
  void run_kernel_set(const kernels::KernelSet& set);
  bool is_wanted(const kernels::KernelSet& set, const Path& path, int threads) const;
  VerifiedPath compare_path(const Path& path, Executor& executor, std::span<const std::size_t> prompts);
  VerifyDifference describe(const RowPlace& place, const Path& path, Executor& executor,
                            std::span<const std::size_t> prompts);
  std::vector<float> slow_row(const RowPlace& place);

  const Model& model_;
  Prompts prompts_;
  const VerifyOptions& options_;
  const VerifyProgress& progress_;
  Stages stages_;
  Ledger ledger_;
  const kernels::FaultyKernel* fault_;  // nullptr: none
  int usual_threads_;
  std::vector<const kernels::KernelSet*> sets_;  // fastest first
  bool described_ = false;                       // the first path that differs
  VerifyReport report_;
};

// ---- The slow path

std::string Verifier::record(std::size_t prompt, const std::function<void(std::int64_t)>& passed_layer) {
  Executor executor(1, kernels::reference_kernels());
  Recorder recorder(ledger_, stages_, passed_layer);
  PathDriver driver(model_, executor, options_.kv_type, prompts_, recorder);
  if (is_short(prompt)) {
    run_every_step(driver, prompt);
  } else {
    run_once(driver, prompt);
  }
  return recorder.logits_sha256();
}

// Each prompt on one thread, several prompts at a time.
void Verifier::run_slow_path() {
  std::vector<std::int64_t> rows;  // to run
  for (std::size_t prompt = 0; prompt < prompts_.size(); ++prompt) {
    const auto n = static_cast<std::int64_t>(prompts_[prompt].size());
    rows.push_back(is_short(prompt) ? n * (n + 1) / 2 : n);
    report_.prompts.push_back({prompts_[prompt], is_short(prompt), ""});
  }
  std::vector<std::size_t> order(prompts_.size());  // longest first, so that none is left to the end
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return rows[a] > rows[b]; });
  const double total = static_cast<double>(std::accumulate(rows.begin(), rows.end(), std::int64_t{0})) *
                       model_.config().n_layer;

  std::mutex mutex;
  std::int64_t done = 0;
  std::exception_ptr error;
  const auto passed_layer = [&](std::int64_t n) {
    const std::lock_guard lock(mutex);
    done += n;
    if (progress_.slow_path) progress_.slow_path(static_cast<double>(done) / total);
  };
  ThreadPool pool(usual_threads_);
  pool.parallel_for(static_cast<std::int64_t>(order.size()), [&](std::int64_t i) {
    const std::size_t prompt = order[static_cast<std::size_t>(i)];
    try {
      report_.prompts[prompt].logits_sha256 = record(prompt, passed_layer);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (error == nullptr) error = std::current_exception();
    }
  });
  if (error != nullptr) std::rethrow_exception(error);
}

void Verifier::check_slow_path() {
  std::set<Digest> logits;
  std::int64_t positions = 0;
  Sha256 prompts_hash, logits_hash;
  for (std::size_t prompt = 0; prompt < prompts_.size(); ++prompt) {
    const auto count = static_cast<std::int32_t>(prompts_[prompt].size());
    for (std::int64_t position = 0; position < count; ++position, ++positions) {
      logits.insert(ledger_.at({prompt, position, stages_.logits()}));
    }
    prompts_hash.update(std::as_bytes(std::span(&count, 1)));
    prompts_hash.update(std::as_bytes(std::span(prompts_[prompt])));
    logits_hash.update(std::as_bytes(std::span(report_.prompts[prompt].logits_sha256)));
  }
  report_.prompts_sha256 = prompts_hash.hex_digest();
  report_.logits_sha256 = logits_hash.hex_digest();
  const std::int64_t values = positions * model_.config().vocab_size;
  if (values < kFewestLogits || positions < 2) {
    fail(
        fmt::format("the prompts give {} logits at {} positions, too few to prove anything: give longer ones",
                    values, positions));
  }
  if (logits.size() == 1) {
    fail("the logits are the same at every position; that paths agree on them would prove nothing");
  }
}

// The values of one row, computed again as the slow path does.
std::vector<float> Verifier::slow_row(const RowPlace& place) {
  Executor executor(1, kernels::reference_kernels());
  Capture capture(ledger_, place);
  PathDriver driver(model_, executor, options_.kv_type, prompts_, capture);
  driver.new_cache(1, place.position + 1);
  driver.forward({.prompt = place.prompt, .begin = 0, .end = place.position + 1, .counted = 1});
  if (capture.differs()) fail("the slow path itself gives other numbers when it is run again");
  return capture.values();
}

// ---- The other paths

void Verifier::find_kernel_sets() {
  const auto available = kernels::available_kernels();
  sets_.assign(available.rbegin(), available.rend());
  if (fault_ == nullptr) return;
  const RowPlace place{0, static_cast<std::int64_t>(prompts_[0].size()) - 1,
                       stages_.index(fault_->recognised_by, model_.config().n_layer / 2)};
  sets_.front() = &kernels::with_fault(*sets_.front(), *fault_, slow_row(place));
}

bool Verifier::is_wanted(const kernels::KernelSet& set, const Path& path, int threads) const {
  const bool usual = threads == usual_threads_, fastest = &set == sets_.front(),
             slowest = &set == sets_.back();
  if (slowest && !fastest) return usual && (!options_.quick || path.reach == Reach::kEverySet);
  if (path.reach != Reach::kFastestSet) return fastest || usual || !options_.quick;
  return options_.quick ? fastest && usual : fastest || usual;
}

void Verifier::run_kernel_set(const kernels::KernelSet& set) {
  const bool scalar = &set == sets_.back();
  std::vector<std::size_t> all, short_ones;
  for (std::size_t prompt = 0; prompt < prompts_.size(); ++prompt) {
    all.push_back(prompt);
    if (is_short(prompt)) short_ones.push_back(prompt);
  }
  std::vector<std::unique_ptr<Executor>> executors;
  for (const int threads : std::set<int>{1, 2, 3, usual_threads_}) {
    executors.push_back(std::make_unique<Executor>(threads, set));
  }
  for (const Path& path : verify_paths()) {
    const auto& chosen = scalar || path.quadratic ? short_ones : all;
    for (const auto& executor : executors) {
      if (chosen.empty() || !is_wanted(set, path, executor->threads())) continue;
      report_.paths.push_back(compare_path(path, *executor, chosen));
      if (progress_.path_compared) progress_.path_compared(report_.paths.back());
    }
  }
}

VerifiedPath Verifier::compare_path(const Path& path, Executor& executor,
                                    std::span<const std::size_t> prompts) {
  Comparer comparer(ledger_, stages_, prompts_);
  {
    PathDriver driver(model_, executor, options_.kv_type, prompts_, comparer);
    path.run(driver, prompts);
  }
  for (const std::size_t prompt : prompts) {
    if (!comparer.saw_all(prompt)) {
      fail(fmt::format("{} with {} kernels: not every value of prompt {} was compared", path.name,
                       executor.kernels().name, prompt + 1));
    }
  }
  VerifiedPath result{path.name,         executor.kernels().name,  executor.threads(), comparer.positions(),
                      comparer.logits(), comparer.intermediates(), std::nullopt};
  if (comparer.first_difference().has_value()) {
    result.difference = describe(*comparer.first_difference(), path, executor, prompts);
    result.difference->logit_rows = comparer.different_logits();
  }
  return result;
}

VerifyDifference Verifier::describe(const RowPlace& place, const Path& path, Executor& executor,
                                    std::span<const std::size_t> prompts) {
  VerifyDifference difference{.prompt = place.prompt, .position = place.position};
  std::tie(difference.operation, difference.layer) = stages_.at(place.stage);
  if (std::exchange(described_, true)) return difference;
  Capture capture(ledger_, place);
  PathDriver driver(model_, executor, options_.kv_type, prompts_, capture);
  path.run(driver, prompts);
  difference.again = compare(slow_row(place), capture.values());
  return difference;
}

void check_prompts(const Config& config, Prompts prompts) {
  if (prompts.empty()) throw Error(ErrorKind::kInvalidArgument, "there is no prompt to verify with");
  for (std::size_t prompt = 0; prompt < prompts.size(); ++prompt) {
    const auto& tokens = prompts[prompt];
    if (tokens.empty()) {
      throw Error(ErrorKind::kInvalidArgument, fmt::format("prompt {} has no tokens", prompt + 1));
    }
    if (tokens.size() > static_cast<std::size_t>(config.max_seq)) {
      throw Error(ErrorKind::kCapacity, fmt::format("prompt {} has {} tokens, the model's context {}",
                                                    prompt + 1, tokens.size(), config.max_seq));
    }
    for (const TokenId id : tokens) {
      if (id >= 0 && id < config.vocab_size) continue;
      throw Error(ErrorKind::kInvalidArgument,
                  fmt::format("prompt {}: token id {} is outside the vocabulary of {}", prompt + 1, id,
                              config.vocab_size));
    }
  }
}

}  // namespace

std::int64_t VerifyReport::differing() const {
  return std::count_if(paths.begin(), paths.end(),
                       [](const VerifiedPath& path) { return path.difference.has_value(); });
}

VerifyReport verify(const Model& model, Prompts prompts, const VerifyOptions& options,
                    const VerifyProgress& progress) {
  check_prompts(model.config(), prompts);
  return Verifier(model, prompts, options, progress).run();
}

}  // namespace kvasir
