// What the commands share: how they are registered, their common options, and printing.
#ifndef KVASIR_APPS_COMMAND_H_
#define KVASIR_APPS_COMMAND_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/json_writer.h"
#include "kvasir/config.h"
#include "kvasir/engine.h"
#include "kvasir/executor.h"
#include "kvasir/generate.h"
#include "kvasir/language_model.h"
#include "kvasir/sampling.h"
#include "kvasir/sequence_runner.h"

namespace kvasir::cli {

// Runs the chosen command after all options have been read; returns the exit status.
using Action = std::function<int()>;

// Each adds one subcommand (or two) to the program and stores its action when the user chose it.
void add_generate(CLI::App& program, Action& chosen);
void add_chat(CLI::App& program, Action& chosen);
void add_tokenize(CLI::App& program, Action& chosen);
void add_logits(CLI::App& program, Action& chosen);
void add_perplexity(CLI::App& program, Action& chosen);
void add_inspect(CLI::App& program, Action& chosen);
void add_bench(CLI::App& program, Action& chosen);
void add_verify(CLI::App& program, Action& chosen);
void add_trace(CLI::App& program, Action& chosen);
void add_study(CLI::App& program, Action& chosen);

inline constexpr int kDone = 0;
inline constexpr int kFailed = 1;
inline constexpr int kWrongUsage = 2;
inline constexpr int kInterrupted = 130;  // 128 + SIGINT, as shells report it

// ---- Options

// An option that takes one number: the whole text must be one, and fit. For int, int64, double, optional
// int64.
template <class Number>
void add_number(CLI::App& command, const std::string& name, Number& value, const std::string& what);

// An option that takes numbers separated by commas. For int, int64, double.
template <class Number>
void add_numbers(CLI::App& command, const std::string& name, std::vector<Number>& values,
                 const std::string& what);

struct ModelOptions {
  std::string path;  // "" is the default model
  int threads = 0;
  Activations activations = Activations::kDefault;
  std::optional<KvType> chosen_kv_type;

  void add_path(CLI::App& command);   // -m alone, for commands that run no model
  void add_types(CLI::App& command);  // all but -m and -t
  void add(CLI::App& command);
  // The file that -m, else KVASIR_MODEL, else the place where script/bootstrap puts the default model names.
  std::string resolved_path() const;
  KvType kv_type() const { return chosen_kv_type.value_or(default_kv_type(activations)); }
  // Shows on a terminal how far it is.
  LanguageModel load(Executor& executor) const { return load(resolved_path(), executor); }
  // Another file, in the same way.
  LanguageModel load(const std::string& file, Executor& executor) const;
};

struct RunCliOptions {
  bool no_cache = false;
  std::int64_t prefill_chunk = 512;

  void add(CLI::App& command);
  RunOptions get() const { return {.use_cache = !no_cache, .prefill_chunk = prefill_chunk}; }
};

// A text from the argument, a file or standard input; or token ids.
struct PromptOptions {
  std::optional<std::string> text;
  std::string file;
  std::optional<std::string> tokens;  // "1,2,3"
  bool parse_control = false;

  void add(CLI::App& command, bool with_tokens);
  std::string read_text() const;  // Error(kIo) if it cannot be read
  std::vector<TokenId> encode(const LanguageModel& model) const;
  ControlTokens control() const { return parse_control ? ControlTokens::kParse : ControlTokens::kAsText; }
};

// Token ids separated by commas or white space. Error(kInvalidArgument) naming what is no number.
std::vector<TokenId> parse_ids(std::string_view text);

struct SamplingOptions {
  SamplingParams params = defaults();
  std::string seed = "0";
  std::vector<std::string> logit_bias;
  std::vector<std::string> stop;
  std::optional<std::int64_t> max_tokens;
  std::int64_t context = 0;
  bool ignore_eos = false;

  void add(CLI::App& command);
  // All of a request but its prompt. Error(kInvalidArgument) for what no model could make right, so that it
  // can be made before one is loaded.
  GenerateRequest request(const RunCliOptions& run, KvType kv_type) const;

 private:
  SamplingParams sampling() const;  // with the seed and the biases read
  static SamplingParams defaults() {
    SamplingParams params;
    params.temperature = 0.8;
    params.top_p = 0.95;
    return params;
  }
};

// Whether tokens are guessed, and by what.
class SpeculationOptions {
 public:
  void add(CLI::App& command);
  // Error(kInvalidArgument) for what is neither ngram nor draft:FILE.
  Speculation kind() const;
  // The draft model, if one is wanted.
  std::optional<LanguageModel> load_draft(const ModelOptions& model, Executor& executor) const;

 private:
  std::string text_;
};

// ---- Output

// To standard output, checked: Error(kIo) if it cannot be written (full disk, closed pipe).
void print(std::string_view text);
// A text in quotes, control characters and quotes escaped.
std::string in_quotes(std::string_view text);
// A JSON array of ids.
void write_ids(JsonWriter& json, std::span<const TokenId> ids);
// A line for people, on standard error.
void note(const std::string& line);
bool stdout_is_terminal();

// A line on standard error that is written over, if that is a terminal; gone when the object is.
class ProgressLine {
 public:
  ~ProgressLine() { show(""); }
  void show(const std::string& text);

 private:
  std::string shown_;
};

}  // namespace kvasir::cli

#endif  // KVASIR_APPS_COMMAND_H_
