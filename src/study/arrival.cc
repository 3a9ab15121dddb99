// Requests come at random times: three schedules under the same arrivals.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <random>
#include <thread>

#include "base/elementary.h"
#include "engine/measure.h"
#include "engine/timed_requests.h"
#include "kvasir/error.h"
#include "kvasir/study.h"
#include "study/context.h"

namespace kvasir {
namespace {

using Clock = TimedRequests::Clock;

void check_positive(const char* name, double value) {
  if (value > 0.0 && std::isfinite(value)) return;
  throw Error(ErrorKind::kInvalidArgument, fmt::format("{} is {}, must be above 0 and finite", name, value));
}

void check_options(const LanguageModel& model, const ArrivalStudyOptions& options) {
  constexpr double kMostArrivals = 100000.0;
  if (options.rates.empty()) throw Error(ErrorKind::kInvalidArgument, "rate: the list is empty");
  check_positive("seconds", options.arrival_seconds);
  check_positive("limit", options.limit_seconds);
  for (const double rate : options.rates) {
    check_positive("rate", rate);
    if (rate * options.arrival_seconds > kMostArrivals) {
      throw Error(ErrorKind::kInvalidArgument,
                  fmt::format("rate is {}: in {} seconds at most {} requests may arrive", rate,
                              options.arrival_seconds, kMostArrivals));
    }
  }
  check_list("prompt", std::array{options.prompt}, 1);
  check_list("new", std::array{options.new_tokens}, 1);
  check_list("running", std::array{options.most_running}, 1);
  check_list("chunk", std::array{options.chunk}, 1);
  check_context(model, options.prompt + options.new_tokens);
}

EngineOptions engine_options(const ArrivalStudyOptions& options, Schedule schedule, std::size_t arrivals) {
  EngineOptions engine;
  engine.kv_blocks = options.most_running * PagedKvCache::blocks_of(options.prompt + options.new_tokens + 1);
  engine.kv_type = options.kv_type;
  engine.share_prefixes = false;
  engine.max_running = static_cast<std::int32_t>(options.most_running);
  engine.max_waiting = std::max<std::int64_t>(static_cast<std::int64_t>(arrivals), 1);
  const bool chunked = schedule == Schedule::kChunked;
  const std::int64_t whole = options.most_running * options.prompt;
  engine.step_tokens = options.most_running + (chunked ? std::min(options.chunk, whole) : whole);
  return engine;
}

// One rate and schedule, by the clock.
class ArrivalRun {
 public:
  ArrivalRun(const LanguageModel& model, Executor& executor, const ArrivalStudyOptions& options, double rate,
             Schedule schedule)
      : model_(model),
        options_(options),
        schedule_(schedule),
        rate_(rate),
        arrivals_(poisson_arrivals(rate, options.arrival_seconds, options.seed)),
        requests_(model, executor, engine_options(options, schedule, arrivals_.size())) {}

  ArrivalRow run() {
    start_ = Clock::now();
    double now = 0.0;
    while (now < options_.limit_seconds && requests_.ended() < arrivals_.size()) {
      submit_due(now);
      if (!requests_.step()) sleep_until_next();
      now = seconds_since(start_);
    }
    return row(now);
  }

 private:
  // Requests are numbered in the order of their arrival. A static batch is submitted whole.
  void submit_due(double now) {
    if (schedule_ == Schedule::kStatic && requests_.ended() < requests_.submitted()) return;
    std::int64_t room = schedule_ == Schedule::kStatic ? options_.most_running : std::ssize(arrivals_);
    while (room-- > 0 && requests_.submitted() < arrivals_.size() &&
           arrivals_[requests_.submitted()] <= now) {
      const auto seed = static_cast<std::uint32_t>(requests_.submitted() + 1);
      requests_.submit(random_tokens(options_.prompt, model_.model().config().vocab_size, seed),
                       options_.new_tokens);
    }
  }

  void sleep_until_next() const {
    const std::size_t next = requests_.submitted();
    if (next == arrivals_.size()) return;
    const double until = std::min(arrivals_[next], options_.limit_seconds);
    std::this_thread::sleep_until(
        start_ + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(until)));
  }

  ArrivalRow row(double end) const {
    ArrivalRow row{rate_, schedule_, 0, static_cast<std::int64_t>(requests_.ended()), 0, end, {}, {}};
    std::vector<double> first_token, inter_token;
    for (std::size_t i = 0; i < arrivals_.size() && arrivals_[i] <= end; ++i) {
      ++row.arrived;
      const auto* times = i < requests_.submitted() ? &requests_.times(i) : nullptr;
      if (times == nullptr || times->empty()) {
        first_token.push_back(end - arrivals_[i]);
        continue;
      }
      row.tokens += std::ssize(*times);
      first_token.push_back(seconds_between(start_, times->front()) - arrivals_[i]);
      for (std::size_t t = 1; t < times->size(); ++t) {
        inter_token.push_back(seconds_between((*times)[t - 1], (*times)[t]));
      }
    }
    row.first_token = percentiles(first_token);
    row.inter_token = percentiles(inter_token);
    return row;
  }

  static std::optional<Percentiles> percentiles(const std::vector<double>& values) {
    if (values.empty()) return std::nullopt;
    return Percentiles{percentile(values, 0.50), percentile(values, 0.99)};
  }

  const LanguageModel& model_;
  const ArrivalStudyOptions& options_;
  Schedule schedule_;
  double rate_;
  std::vector<double> arrivals_;  // seconds after start_
  TimedRequests requests_;
  Clock::time_point start_;
};

}  // namespace

std::string_view schedule_name(Schedule schedule) {
  switch (schedule) {
    case Schedule::kStatic:
      return "static";
    case Schedule::kContinuous:
      return "continuous";
    case Schedule::kChunked:
      return "chunked";
  }
  return "";
}

std::vector<double> poisson_arrivals(double rate, double seconds, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<double> times;
  for (double time = 0.0;;) {
    const double uniform = (static_cast<double>(random() >> 12) + 0.5) * 0x1p-52;  // in (0, 1)
    time -= defined_log(uniform) / rate;
    if (time >= seconds) return times;
    times.push_back(time);
  }
}

std::vector<ArrivalRow> study_arrival(const LanguageModel& model, Executor& executor,
                                      const ArrivalStudyOptions& options, const StudyProgress& progress) {
  check_options(model, options);
  const std::int64_t all = std::ssize(options.rates) * std::ssize(kSchedules);
  std::vector<ArrivalRow> rows;
  for (const double rate : options.rates) {
    for (const Schedule schedule : kSchedules) {
      if (progress) progress(std::ssize(rows), all);
      rows.push_back(ArrivalRun(model, executor, options, rate, schedule).run());
    }
  }
  return rows;
}

}  // namespace kvasir
