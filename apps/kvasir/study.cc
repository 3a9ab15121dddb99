// kvasir study: the measurements of how cache and schedules behave.
#include "kvasir/study.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <utility>

#include "base/json_writer.h"
#include "base/processor.h"
#include "command.h"
#include "kernels/kernels.h"
#include "kvasir/error.h"
#include "plot.h"
#include "table.h"

namespace kvasir::cli {
namespace {

struct OutputOptions {
  bool json = false;
  std::string csv, plot;

  void add(CLI::App& command) {
    command.add_flag("--json", json, "One JSON document");
    command.add_option("--csv", csv, "Write the rows to this file as comma-separated values")->take_last();
    command
        .add_option("--plot", plot,
                    "Draw into this .png or .svg file, by Python: $KVASIR_PYTHON, else python3, with the "
                    "package kvasir and matplotlib")
        ->take_last();
  }
};

// What one study has found, however it is told.
struct Findings {
  std::string study;
  std::function<void(JsonWriter&)> write_fields;  // of the document, besides the rows
  std::vector<std::string> notes;                 // for people, below the table
  ResultTable table;
};

// Where findings go. Made before anything is measured, so that an hour's work does not end in a wrong path.
class Output {
 public:
  explicit Output(const OutputOptions& options) : options_(options) {
    if (!options.plot.empty()) check_plot(options.plot);
    if (options.csv.empty()) return;
    csv_.open(options.csv, std::ios::binary);
    check_csv();
  }

  void tell(const Findings& findings) {
    progress_.show("");
    JsonWriter json;
    json.begin_object().field("study", findings.study).field("processor", processor_name());
    findings.write_fields(json);
    findings.table.write_json(json.key("rows"));
    json.end_object();
    if (options_.json) {
      print(json.text() + "\n");
    } else {
      print(findings.table.to_markdown());
      if (!findings.notes.empty()) print("\n");
      for (const std::string& note : findings.notes) print(note + "\n");
    }
    if (!options_.csv.empty()) {
      csv_ << findings.table.to_csv() << std::flush;
      check_csv();
    }
    if (!options_.plot.empty()) draw_plot(json.text(), options_.plot);
  }

  StudyProgress progress() {
    return
        [this](std::int64_t done, std::int64_t all) { progress_.show(fmt::format("{} of {}", done, all)); };
  }

 private:
  void check_csv() const {
    if (!csv_) throw Error(ErrorKind::kIo, fmt::format("{}: cannot be written", options_.csv));
  }

  const OutputOptions& options_;
  std::ofstream csv_;
  ProgressLine progress_;
};

void write_executor(JsonWriter& json, const Executor& executor) {
  json.field("kernels", std::string_view(executor.kernels().name)).field("threads", executor.threads());
}

// A study of a model: its options, and how it is run.
struct ModelStudy {
  ModelOptions model;
  OutputOptions output;

  template <class Study>
  int run(const Study& study) const {
    Output out(output);
    Executor executor(model.threads);
    const LanguageModel loaded = model.load(executor);
    Findings findings = study(loaded, executor, out.progress());
    findings.write_fields = [&, fields = std::move(findings.write_fields)](JsonWriter& json) {
      json.field("model", std::filesystem::path(loaded.path()).filename().string());
      write_executor(json, executor);
      fields(json);
    };
    out.tell(findings);
    return kDone;
  }
};

// ---- cache

ResultTable cache_table(const CacheStudy& study, const CacheStudyOptions& options) {
  ResultTable table{{{"batch", "batch"},
                     {"new", "new"},
                     {"cached", "cache"},
                     {"seconds", "seconds"},
                     {"tokens_per_second", "tokens/s"}},
                    {}};
  for (const CacheCurve& curve : study.curves) {
    for (const std::int64_t count : options.new_tokens) {
      if (count > std::ssize(curve.seconds)) continue;
      const double seconds = curve.seconds[static_cast<std::size_t>(count - 1)];
      table.rows.push_back({curve.batch, count, std::string(curve.cached ? "on" : "off"), seconds,
                            static_cast<double>(curve.batch * count) / seconds});
    }
  }
  return table;
}

void write_curve(JsonWriter& json, const CacheCurve& curve) {
  json.begin_object().field("batch", curve.batch).field("cached", curve.cached);
  json.key("seconds").begin_array();
  for (const double seconds : curve.seconds) json.value(seconds);
  json.end_array().key("fit");
  if (curve.growth) {
    json.begin_object().field("constant", curve.growth->constant).field("linear", curve.growth->linear);
    json.field("quadratic", curve.growth->quadratic);
    json.field("dominant", curve.growth->dominant(static_cast<double>(curve.seconds.size()))).end_object();
  } else {
    json.null();
  }
  json.key("step_seconds");
  curve.step_seconds() ? json.value(*curve.step_seconds()) : json.null();
  json.end_object();
}

void write_cache(JsonWriter& json, const CacheStudy& study, const CacheStudyOptions& options) {
  const Config& config = study.config;
  json.field("shape", options.shape == StudyShape::kLarge ? "large" : "small");
  json.field("n_layer", config.n_layer).field("d_model", config.d_model).field("d_ff", config.d_ff);
  json.field("n_head", config.n_head).field("n_kv_head", config.n_kv_head);
  json.field("vocab_size", config.vocab_size).field("prompt", options.prompt);
  json.field("weight_bytes", study.weight_bytes);
  json.field("read_bytes_per_second", study.read_peak.median);
  json.field("read_weights_seconds", study.read_weights_seconds());
  json.key("curves").begin_array();
  for (const CacheCurve& curve : study.curves) write_curve(json, curve);
  json.end_array().key("crossovers").begin_array();
  for (std::size_t i = 0; i < options.batches.size(); ++i) {
    if (!study.crossovers[i]) continue;
    json.begin_object().field("batch", options.batches[i]);
    json.field("new", study.crossovers[i]->new_tokens);
    json.field("source", study.crossovers[i]->measured ? "measured" : "fitted").end_object();
  }
  json.end_array();
}

std::string growth_note(const CacheCurve& curve) {
  const std::string name = fmt::format("batch {}, cache {}", curve.batch, curve.cached ? "on" : "off");
  if (!curve.growth) {
    return fmt::format("{}: {} tokens in the budget, too few to fit", name, curve.seconds.size());
  }
  const auto& [constant, linear, quadratic] = *curve.growth;
  return fmt::format(
      "{}: {:.3g} s + {:.3g} ms n + {:.3g} us n^2, fitted over n = 1 to {}; the {} term dominates there",
      name, constant, 1e3 * linear, 1e6 * quadratic, curve.seconds.size(),
      curve.growth->dominant(static_cast<double>(curve.seconds.size())));
}

std::vector<std::string> cache_notes(const CacheStudy& study, const CacheStudyOptions& options) {
  std::vector<std::string> notes;
  for (const CacheCurve& curve : study.curves) notes.push_back(growth_note(curve));
  for (std::size_t i = 0; i < options.batches.size(); ++i) {
    const auto& crossover = study.crossovers[i];
    notes.push_back(crossover ? fmt::format("batch {}: the cache is faster from {} new tokens on ({})",
                                            options.batches[i], crossover->new_tokens,
                                            crossover->measured ? "measured" : "from the fitted curves")
                              : fmt::format("batch {}: no crossover was found", options.batches[i]));
  }
  for (const CacheCurve& curve : study.curves) {
    if (!curve.cached || !curve.step_seconds()) continue;
    const double read = study.read_weights_seconds();
    notes.push_back(
        fmt::format("batch {}: a cached step takes {:.3g} ms, {:.3g} us a token; reading the weights "
                    "({:.1f} MB at {:.1f} GB/s) {:.3g} ms: {:.1f} times",
                    curve.batch, 1e3 * *curve.step_seconds(),
                    1e6 * *curve.step_seconds() / static_cast<double>(curve.batch),
                    static_cast<double>(study.weight_bytes) / 1e6, study.read_peak.median / 1e9, 1e3 * read,
                    *curve.step_seconds() / read));
  }
  return notes;
}

void add_cache(CLI::App& group, Action& chosen) {
  struct Options {
    OutputOptions output;
    CacheStudyOptions study;
    std::string shape = "small";
  };
  CLI::App& command =
      *group.add_subcommand("cache", "Decoding with and without the cache, on random weights");
  const auto options = std::make_shared<Options>();
  command.add_option("--shape", options->shape, "small (4 layers, width 256) or large (8 layers, width 512)")
      ->check(CLI::IsMember({"small", "large"}))
      ->capture_default_str()
      ->take_last();
  add_numbers(command, "-b,--batch", options->study.batches, "Sequences that decode together");
  add_number(command, "-p,--prompt", options->study.prompt, "Tokens of each prompt");
  add_numbers(command, "-n,--new", options->study.new_tokens, "New tokens whose times are reported");
  add_number(command, "--budget", options->study.budget_seconds,
             "Seconds for all; what they do not suffice for is left out");
  options->output.add(command);
  command.callback([options, &chosen] {
    chosen = [options] {
      options->study.shape = options->shape == "large" ? StudyShape::kLarge : StudyShape::kSmall;
      Output out(options->output);
      const CacheStudy study = study_cache(options->study, out.progress());
      out.tell({"cache", [&](JsonWriter& json) { write_cache(json, study, options->study); },
                cache_notes(study, options->study), cache_table(study, options->study)});
      return kDone;
    };
  });
}

// ---- chunk

Findings chunk_findings(const std::vector<ChunkRow>& rows, const ChunkStudyOptions& options) {
  ResultTable table{{{"chunk", "chunk"},
                     {"prefill_seconds", "prefill ms", 1e3},
                     {"stall_seconds", "longest stall ms", 1e3},
                     {"decode_seconds", "undisturbed ms", 1e3}},
                    {}};
  for (const ChunkRow& row : rows) {
    table.rows.push_back({row.chunk, row.prefill_seconds, row.stall_seconds, row.decode_seconds});
  }
  return {
      "chunk",
      [options](JsonWriter& json) {
        json.field("prompt", options.prompt).field("users", options.users);
        json.field("repetitions", options.repetitions);
      },
      {fmt::format("A prompt of {} tokens while {} users decode; times between their tokens. Medians of {}.",
                   options.prompt, options.users, options.repetitions)},
      std::move(table)};
}

void add_chunk(CLI::App& group, Action& chosen) {
  struct Options : ModelStudy {
    ChunkStudyOptions study;
  };
  CLI::App& command = *group.add_subcommand("chunk", "What chunks of a long prompt cost it, and save others");
  const auto options = std::make_shared<Options>();
  options->model.add(command);
  add_numbers(command, "--chunk", options->study.chunks, "Prompt tokens of one step");
  add_number(command, "-p,--prompt", options->study.prompt, "Tokens of the long prompt");
  add_number(command, "-u,--users", options->study.users, "Sequences that decode meanwhile");
  add_number(command, "-r,--repetitions", options->study.repetitions, "Repetitions, after a warm-up");
  options->output.add(command);
  command.callback([options, &chosen] {
    chosen = [options] {
      options->study.kv_type = options->model.kv_type();
      return options->run([&](const LanguageModel& model, Executor& executor, const StudyProgress& progress) {
        return chunk_findings(study_chunk(model, executor, options->study, progress), options->study);
      });
    };
  });
}

// ---- arrival

Findings arrival_findings(const std::vector<ArrivalRow>& rows, const ArrivalStudyOptions& options) {
  ResultTable table{{{"schedule", "schedule"},
                     {"rate", "requests/s"},
                     {"arrived", "arrived"},
                     {"finished", "finished"},
                     {"tokens", "tokens"},
                     {"seconds", "seconds"},
                     {"tokens_per_second", "tokens/s"},
                     {"first_token_p50_seconds", "first token p50 ms", 1e3},
                     {"first_token_p99_seconds", "p99 ms", 1e3},
                     {"inter_token_p50_seconds", "between p50 ms", 1e3},
                     {"inter_token_p99_seconds", "p99 ms", 1e3}},
                    {}};
  for (const ArrivalRow& row : rows) {
    const auto p50 = [](const auto& both) { return both ? Cell(both->p50) : Cell(); };
    const auto p99 = [](const auto& both) { return both ? Cell(both->p99) : Cell(); };
    table.rows.push_back({std::string(schedule_name(row.schedule)), row.rate, row.arrived, row.finished,
                          row.tokens, row.seconds, row.tokens_per_second(), p50(row.first_token),
                          p99(row.first_token), p50(row.inter_token), p99(row.inter_token)});
  }
  std::vector<std::string> notes;
  if (std::ranges::any_of(rows, [](const ArrivalRow& row) { return row.finished < row.arrived; })) {
    notes.emplace_back("Where not all have finished by the limit, times to first token are lower bounds.");
  }
  return {"arrival",
          [options](JsonWriter& json) {
            json.field("prompt", options.prompt).field("new", options.new_tokens);
            json.field("running", options.most_running).field("chunk", options.chunk);
            json.field("arrival_seconds", options.arrival_seconds);
            json.field("limit_seconds", options.limit_seconds).field("seed", options.seed);
          },
          std::move(notes), std::move(table)};
}

void add_arrival(CLI::App& group, Action& chosen) {
  struct Options : ModelStudy {
    ArrivalStudyOptions study;
    std::int64_t seed = 0;
  };
  CLI::App& command = *group.add_subcommand(
      "arrival", "Throughput and latency under random arrivals: static, continuous and chunked batching");
  const auto options = std::make_shared<Options>();
  ArrivalStudyOptions& study = options->study;
  options->model.add(command);
  add_numbers(command, "--rate", study.rates, "Requests a second");
  add_number(command, "-p,--prompt", study.prompt, "Tokens of each prompt");
  add_number(command, "-n,--new", study.new_tokens, "New tokens of each request");
  add_number(command, "--running", study.most_running, "Sequences that run together at most");
  add_number(command, "--chunk", study.chunk, "Prompt tokens of a step, of the chunked schedule");
  add_number(command, "--seconds", study.arrival_seconds, "How long requests arrive");
  add_number(command, "--limit", study.limit_seconds, "Seconds of one rate and schedule at most");
  add_number(command, "--seed", options->seed, "Of the times of arrival");
  options->output.add(command);
  command.callback([options, &chosen] {
    chosen = [options] {
      options->study.kv_type = options->model.kv_type();
      options->study.seed = static_cast<std::uint64_t>(options->seed);
      return options->run([&](const LanguageModel& model, Executor& executor, const StudyProgress& progress) {
        return arrival_findings(study_arrival(model, executor, options->study, progress), options->study);
      });
    };
  });
}

// ---- sharing

Findings sharing_findings(const std::vector<SharingRow>& rows, const SharingStudyOptions& options) {
  ResultTable table{{{"sequences", "sequences"},
                     {"shared_blocks", "blocks"},
                     {"unshared_blocks", "without sharing"},
                     {"saved_bytes", "saved MB", 1e-6},
                     {"shared_first_token_median_seconds", "first token ms", 1e3},
                     {"shared_first_token_most_seconds", "last one's ms", 1e3},
                     {"unshared_first_token_median_seconds", "without sharing ms", 1e3},
                     {"unshared_first_token_most_seconds", "last one's ms", 1e3}},
                    {}};
  for (const SharingRow& row : rows) {
    table.rows.push_back({row.sequences, row.shared_blocks, row.unshared_blocks,
                          static_cast<std::int64_t>(row.saved_bytes), row.shared_median, row.shared_most,
                          row.unshared_median, row.unshared_most});
  }
  return {"sharing",
          [options](JsonWriter& json) { json.field("prompt", options.prompt).field("own", options.own); },
          {fmt::format("{} tokens in common, {} of each one's own; blocks as S ceil((P + u) / 16) - (S - 1) "
                       "floor(P / 16) says.",
                       options.prompt, options.own)},
          std::move(table)};
}

void add_sharing(CLI::App& group, Action& chosen) {
  struct Options : ModelStudy {
    SharingStudyOptions study;
  };
  CLI::App& command = *group.add_subcommand(
      "sharing", "Memory and time to first token of sequences that begin with the same tokens");
  const auto options = std::make_shared<Options>();
  options->model.add(command);
  add_numbers(command, "-s,--sequences", options->study.sequences, "Sequences that are there together");
  add_number(command, "-p,--prompt", options->study.prompt, "Tokens that all have in common");
  add_number(command, "--own", options->study.own, "Tokens of each one's own behind them");
  options->output.add(command);
  command.callback([options, &chosen] {
    chosen = [options] {
      options->study.kv_type = options->model.kv_type();
      return options->run([&](const LanguageModel& model, Executor& executor, const StudyProgress& progress) {
        return sharing_findings(study_sharing(model, executor, options->study, progress), options->study);
      });
    };
  });
}

// ---- speculation

// draft: the draft model's name, if there is one.
Findings speculation_findings(const std::vector<SpeculationRow>& rows, const SpeculationStudyOptions& options,
                              const std::string& draft) {
  ResultTable table{{{"text", "text"},
                     {"guesses", "guesses by"},
                     {"tokens", "tokens"},
                     {"plain_tokens_per_second", "tokens/s without"},
                     {"tokens_per_second", "tokens/s with"},
                     {"speedup", "times"},
                     {"drafted", "guessed"},
                     {"accepted", "right"}},
                    {}};
  for (const SpeculationRow& row : rows) {
    const auto steps = static_cast<double>(row.tokens - 1);  // the first one is there when the clock starts
    table.rows.push_back({row.text, std::string(speculation_name(row.speculation)), row.tokens,
                          steps / row.plain_seconds, steps / row.seconds, row.speedup(), row.drafted,
                          row.accepted});
  }
  return {"speculation",
          [options, draft](JsonWriter& json) {
            json.field("new", options.new_tokens).field("repetitions", options.repetitions);
            if (!draft.empty()) json.field("draft_model", draft);
            json.key("texts").begin_array();
            for (const SpeculationText& text : options.texts) {
              json.begin_object().field("text", text.name).field("prompt", text.prompt);
              json.field("temperature", text.temperature).end_object();
            }
            json.end_array();
          },
          {fmt::format("Answers of at most {} tokens, from the first token to the last. Medians of {}.",
                       options.new_tokens, options.repetitions)},
          std::move(table)};
}

void add_speculation(CLI::App& group, Action& chosen) {
  struct Options : ModelStudy {
    SpeculationStudyOptions study;
    std::string draft;
  };
  CLI::App& command =
      *group.add_subcommand("speculation", "How much faster guesses make an answer, and how many are right");
  const auto options = std::make_shared<Options>();
  options->model.add(command);
  command.add_option("--draft", options->draft, "A smaller model that guesses as well")->take_last();
  for (SpeculationText& text : options->study.texts) {
    command.add_option("--" + text.name, text.prompt, "The prompt of the " + text.name + " text")
        ->take_last();
  }
  add_number(command, "-n,--new", options->study.new_tokens, "Tokens of an answer at most");
  add_number(command, "-r,--repetitions", options->study.repetitions, "Repetitions, after a warm-up");
  options->output.add(command);
  command.callback([options, &chosen] {
    chosen = [options] {
      options->study.kv_type = options->model.kv_type();
      return options->run([&](const LanguageModel& model, Executor& executor, const StudyProgress& progress) {
        SpeculationStudyOptions study = options->study;
        std::optional<LanguageModel> draft;
        if (!options->draft.empty()) {
          study.draft_model = &draft.emplace(options->model.load(options->draft, executor));
        }
        return speculation_findings(study_speculation(model, executor, study, progress), options->study,
                                    std::filesystem::path(options->draft).filename().string());
      });
    };
  });
}

}  // namespace

void add_study(CLI::App& program, Action& chosen) {
  CLI::App& group = *program.add_subcommand("study", "Measure how the cache and the schedules behave here");
  group.callback([&group] {
    if (!group.get_subcommands().empty()) return;
    throw Error(ErrorKind::kInvalidArgument,
                "study: name one: cache, chunk, arrival, sharing or speculation");
  });
  add_cache(group, chosen);
  add_chunk(group, chosen);
  add_arrival(group, chosen);
  add_sharing(group, chosen);
  add_speculation(group, chosen);
}

}  // namespace kvasir::cli
