// Decoding with and without the cache.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "engine/measure.h"
#include "kernels/peaks.h"
#include "kvasir/error.h"
#include "kvasir/lab.h"
#include "kvasir/study.h"

namespace kvasir {
namespace {

using Clock = std::chrono::steady_clock;

void check_options(const CacheStudyOptions& options, const Config& config) {
  check_list("batch", options.batches, 1);
  check_list("prompt", std::array{options.prompt}, 1);
  check_list("new", options.new_tokens, 1);
  if (!(options.budget_seconds > 0.0)) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("budget is {} seconds, must be above 0", options.budget_seconds));
  }
  const std::int64_t most = std::ranges::max(options.new_tokens);
  if (options.prompt + most > config.max_seq) {
    throw Error(ErrorKind::kCapacity,
                fmt::format("{} prompt tokens and {} new ones do not fit the shape's {} positions",
                            options.prompt, most, config.max_seq));
  }
}

class CacheRuns {
 public:
  CacheRuns(const CacheStudyOptions& options, TinyLM& model)
      : options_(options),
        model_(model),
        most_(std::ranges::max(options.new_tokens)),
        end_(Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                std::chrono::duration<double>(options.budget_seconds))) {}

  // The lab's own generation, its clock read after every token.
  CacheCurve run(std::int64_t batch, bool cached, Clock::time_point deadline) {
    CacheCurve curve{batch, cached, {}, {}};
    const std::vector<TokenId> prompt = random_tokens(batch * options_.prompt, model_.config().vocab_size);
    Clock::time_point start;
    const auto timed = [&](std::int64_t new_tokens) {
      curve.seconds.clear();
      start = Clock::now();
      try {
        generate(model_, prompt, static_cast<std::int32_t>(batch), new_tokens, cached, 0,
                 {.temperature = 0.0}, [&] { after_token(curve, start, deadline); });
      } catch (const TimeIsUp&) {
      }
    };
    timed(1);  // warms up
    timed(most_);
    curve.growth = fit_growth(curve.seconds);
    return curve;
  }

  Clock::time_point end() const { return end_; }

 private:
  struct TimeIsUp {};

  // A token that came too late is not counted.
  static void after_token(CacheCurve& curve, Clock::time_point start, Clock::time_point deadline) {
    const Clock::time_point now = Clock::now();
    if (now > deadline) throw TimeIsUp{};
    curve.seconds.push_back(seconds_between(start, now));
  }

  const CacheStudyOptions& options_;
  TinyLM& model_;
  std::int64_t most_;
  Clock::time_point end_;
};

}  // namespace

Config study_config(StudyShape shape) {
  Config config;
  const bool large = shape == StudyShape::kLarge;
  config.vocab_size = 4096;
  config.max_seq = 1024;
  config.n_layer = large ? 8 : 4;
  config.n_head = 8;
  config.n_kv_head = 2;
  config.d_model = large ? 512 : 256;
  config.head_dim = config.d_model / config.n_head;
  config.d_ff = config.d_model * 11 / 4;  // as the lab's 176 to 64
  return config;
}

std::optional<double> CacheCurve::step_seconds() const {
  if (seconds.size() < 2) return std::nullopt;
  std::vector<double> steps;
  for (std::size_t i = 1; i < seconds.size(); ++i) steps.push_back(seconds[i] - seconds[i - 1]);
  return percentile(steps, 0.5);
}

// The cached runs first: they are short. What they leave of the budget is shared out evenly.
CacheStudy study_cache(const CacheStudyOptions& options, const StudyProgress& progress) {
  const Config config = study_config(options.shape);
  check_options(options, config);
  TinyLM model(config);
  const kernels::PeakMeter meter;
  CacheRuns runs(options, model);
  const std::size_t batches = options.batches.size();
  std::int64_t done = 0;
  const auto next = [&] {
    if (progress) progress(done++, static_cast<std::int64_t>(2 * batches));
  };

  std::vector<double> peaks = {meter.read_bandwidth(model.executor().pool())};
  std::vector<CacheCurve> cached;
  for (const std::int64_t batch : options.batches) {
    next();
    cached.push_back(runs.run(batch, true, runs.end()));
    peaks.push_back(meter.read_bandwidth(model.executor().pool()));
  }
  CacheStudy study{config, model.model().weight_bytes(), {}, {}, spread_of(peaks)};
  for (std::size_t i = 0; i < batches; ++i) {
    next();
    const Clock::time_point now = Clock::now();
    const auto share = (runs.end() - now) / static_cast<Clock::rep>(batches - i);
    CacheCurve uncached = runs.run(options.batches[i], false, now + share);
    study.crossovers.push_back(find_crossover(cached[i], uncached, config.max_seq - options.prompt));
    study.curves.push_back(std::move(cached[i]));
    study.curves.push_back(std::move(uncached));
  }
  return study;
}

}  // namespace kvasir
