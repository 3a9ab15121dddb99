// Studies: how the cache and the schedules behave on this machine, measured.
//
// Times are in seconds. Token ids are fixed and pseudo-random, choices greedy, and end tokens do not end
// anything, so that only time differs between two runs. Functions that take options throw
// Error(kInvalidArgument) for one that cannot be, and Error(kCapacity) if the lengths do not fit the model's
// context.
#ifndef KVASIR_STUDY_H_
#define KVASIR_STUDY_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kvasir/bench.h"
#include "kvasir/config.h"
#include "kvasir/engine.h"
#include "kvasir/executor.h"
#include "kvasir/language_model.h"

namespace kvasir {

// Called before each part, with how many of all parts are done and how many there are.
using StudyProgress = std::function<void(std::int64_t done, std::int64_t all)>;

// ---- Curves

// seconds = constant + linear n + quadratic n^2.
struct Growth {
  double constant, linear, quadratic;
  double at(double n) const { return constant + n * (linear + n * quadratic); }
  // Which term is larger at n: "linear" or "quadratic".
  std::string_view dominant(double n) const;
};
// By least squares: seconds[i] is the time of n = i + 1. nothing for fewer than three.
std::optional<Growth> fit_growth(std::span<const double> seconds);

// ---- The cache: decoding with and without it, on random weights.

enum class StudyShape { kSmall, kLarge };
Config study_config(StudyShape shape);

struct CacheStudyOptions {
  StudyShape shape = StudyShape::kSmall;
  std::vector<std::int64_t> batches = {8};
  std::int64_t prompt = 128;                                       // tokens of each sequence
  std::vector<std::int64_t> new_tokens = {32, 64, 128, 256, 512};  // that are reported
  double budget_seconds = 60.0;                                    // of all runs together
};

// One generation of the largest number of new tokens, or of as many as the budget allowed.
struct CacheCurve {
  std::int64_t batch;
  bool cached;
  std::vector<double> seconds;   // until the first new token, until the second, ...
  std::optional<Growth> growth;  // over all of them
  // Median time from one new token to the next. nothing for fewer than two tokens.
  std::optional<double> step_seconds() const;
};

// The smallest number of new tokens from which on the cached path is faster.
struct Crossover {
  std::int64_t new_tokens;
  bool measured;  // else where the fitted curves cross
};

struct CacheStudy {
  Config config;
  std::size_t weight_bytes;
  std::vector<CacheCurve> curves;                    // [batches][cached, uncached]
  std::vector<std::optional<Crossover>> crossovers;  // [batches]
  Spread read_peak;  // bytes a second from memory, measured in turn with the cached runs
  double read_weights_seconds() const { return static_cast<double>(weight_bytes) / read_peak.median; }
};
CacheStudy study_cache(const CacheStudyOptions& options, const StudyProgress& progress = {});

// Both with times of n = 1, 2, ... new tokens. The two paths do the same work for the first token, so a
// smaller difference than they have there is none.
std::optional<Crossover> find_crossover(const CacheCurve& cached, const CacheCurve& uncached,
                                        std::int64_t most_new_tokens);

// ---- Chunks: a long prompt comes while others decode.

struct ChunkStudyOptions {
  std::vector<std::int64_t> chunks = {16, 32, 64, 128, 256, 512, 1024};  // prompt tokens of one step
  std::int64_t prompt = 1024;                                            // the long one
  std::int64_t users = 4;                                                // who decode
  std::int64_t repetitions = 3;                                          // after a warm-up
  KvType kv_type = KvType::kF16;
};

struct ChunkRow {
  std::int64_t chunk;
  double prefill_seconds;  // from the prompt's arrival to its first token; median of the repetitions
  double stall_seconds;    // the longest time between two tokens of a user meanwhile; likewise
  double decode_seconds;   // the median time between two tokens of a user without the prompt
};
std::vector<ChunkRow> study_chunk(const LanguageModel& model, Executor& executor,
                                  const ChunkStudyOptions& options, const StudyProgress& progress = {});

// ---- Arrival: requests come at random times.

enum class Schedule {
  kStatic,      // what waits when the last batch has ended is the next batch
  kContinuous,  // requests join at every step, their prompts whole
  kChunked,     // requests join at every step, so many prompt tokens a step
};
inline constexpr std::array kSchedules = {Schedule::kStatic, Schedule::kContinuous, Schedule::kChunked};
std::string_view schedule_name(Schedule schedule);  // "static", "continuous", "chunked"

struct ArrivalStudyOptions {
  std::vector<double> rates = {0.5, 1, 2, 4, 8};  // requests a second
  std::int64_t prompt = 128;
  std::int64_t new_tokens = 32;
  std::int64_t most_running = 16;  // sequences in one step, and of a static batch
  std::int64_t chunk = 64;         // prompt tokens of a step, of Schedule::kChunked
  double arrival_seconds = 8.0;    // requests arrive for so long
  double limit_seconds = 16.0;     // of one rate and schedule
  std::uint64_t seed = 0;          // of the times of arrival, the same for all schedules
  KvType kv_type = KvType::kF16;
};

struct Percentiles {
  double p50, p99;
};

struct ArrivalRow {
  double rate;
  Schedule schedule;
  std::int64_t arrived;
  std::int64_t finished;  // by the limit
  std::int64_t tokens;    // generated
  double seconds;         // until the last token, or the limit
  // From the time of arrival. Who still waits at the limit counts with the wait so far: a lower bound.
  std::optional<Percentiles> first_token;
  std::optional<Percentiles> inter_token;  // between two tokens of one request
  double tokens_per_second() const { return seconds > 0 ? static_cast<double>(tokens) / seconds : 0.0; }
};
std::vector<ArrivalRow> study_arrival(const LanguageModel& model, Executor& executor,
                                      const ArrivalStudyOptions& options, const StudyProgress& progress = {});

// Times of a Poisson process: those below `seconds`, ascending.
std::vector<double> poisson_arrivals(double rate, double seconds, std::uint64_t seed);

// ---- Sharing: sequences that begin with the same tokens.

struct SharingStudyOptions {
  std::vector<std::int64_t> sequences = {2, 4, 8, 16, 32};
  std::int64_t prompt = 512;  // tokens that all have in common
  std::int64_t own = 32;      // and so many more of each one's own
  KvType kv_type = KvType::kF16;
};

struct SharingRow {
  std::int64_t sequences;
  std::int64_t shared_blocks;    // in use when all prompts are computed
  std::int64_t unshared_blocks;  // likewise, without sharing
  std::size_t saved_bytes;
  // Of the sequences that come, all at once, when the first one's prompt has been computed.
  double shared_median, shared_most;  // time to first token
  double unshared_median, unshared_most;
};
// Error(kRuntime) if the blocks are not as many as shared_blocks_expected() says.
std::vector<SharingRow> study_sharing(const LanguageModel& model, Executor& executor,
                                      const SharingStudyOptions& options, const StudyProgress& progress = {});

// Whole blocks of the common prompt are there once:
// sequences * ceil((prompt + own) / 16) - (sequences - 1) * floor(prompt / 16).
std::int64_t shared_blocks_expected(std::int64_t sequences, std::int64_t prompt, std::int64_t own);

// ---- Speculation: answers with and without guesses.

struct SpeculationText {
  std::string name;
  std::string prompt;  // a user's message, if the model has a chat template
  double temperature;
};

struct SpeculationStudyOptions {
  std::vector<SpeculationText> texts = {
      {"repetitive",
       "Correct the mistakes in this text: In the north of the country there is a small town between two "
       "rivers. Its market is held on every Tuesday, and people come from all the villages around it to "
       "sell apples, cheese and honey. On the hill above the town stands an old tower, from which one can "
       "see the mountains on a clear day. In winter the road over the pass is closed, and the only way out "
       "of the valley is the railway along the river.",
       0.0},
      {"free", "Tell me a long story about a dragon and a king.", 0.8}};
  std::int64_t new_tokens = 128;               // at most; an answer may end before
  std::int64_t repetitions = 5;                // after a warm-up
  const LanguageModel* draft_model = nullptr;  // guesses, too, if there is one
  KvType kv_type = KvType::kF16;
};

struct SpeculationRow {
  std::string text;
  Speculation speculation;
  std::int64_t tokens;   // of the answer
  double plain_seconds;  // from its first token to its last; medians of the repetitions
  double seconds;        // likewise, with guesses
  std::int64_t drafted, accepted;
  double speedup() const { return plain_seconds / seconds; }
};
std::string_view speculation_name(Speculation speculation);  // "none", "ngram", "draft"

// Error(kRuntime) if an answer has fewer than two tokens, or if guesses change it.
std::vector<SpeculationRow> study_speculation(const LanguageModel& model, Executor& executor,
                                              const SpeculationStudyOptions& options,
                                              const StudyProgress& progress = {});

}  // namespace kvasir

#endif  // KVASIR_STUDY_H_
