// kvasir verify: the promise, proved on the user's model and machine.
#include "kvasir/verify.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <set>
#include <utility>

#include "base/json_writer.h"
#include "base/mapped_file.h"
#include "base/processor.h"
#include "base/sha256.h"
#include "command.h"
#include "kernels/kernels.h"
#include "kvasir/error.h"
#include "kvasir/version.h"

namespace kvasir::cli {
namespace {

struct Options {
  ModelOptions model;
  PromptOptions prompt;
  VerifyOptions verify;
  bool json = false;
};

// One prompt a line; lines without anything in them are left out.
std::vector<std::vector<TokenId>> read_prompts(const Options& options, const LanguageModel& model) {
  if (options.prompt.file.empty()) return verify_prompts(model, options.verify.quick);
  const std::string text = options.prompt.read_text();
  std::vector<std::vector<TokenId>> prompts;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string_view line = std::string_view(text).substr(begin, end - begin);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.empty()) prompts.push_back(model.encode_prompt(line, options.prompt.control()));
    begin = end + 1;
  }
  if (prompts.empty()) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("{}: no prompt in it; there must be one on each line", options.prompt.file));
  }
  return prompts;
}

std::string sha256_of_file(const std::string& path) {
  Sha256 hash;
  hash.update(MappedFile::open(path).bytes());
  return hash.hex_digest();
}

// ---- The receipt: what two machines can compare.

using Receipt = std::vector<std::pair<std::string, std::string>>;

const char* name_of(KvType type) {
  switch (type) {
    case KvType::kF32:
      return "f32";
    case KvType::kF16:
      return "f16";
    case KvType::kBF16:
      return "bf16";
  }
  return "";
}

Receipt make_receipt(const Options& options, const LanguageModel& model, const VerifyReport& report) {
  std::vector<std::string_view> sets;
  for (const kernels::KernelSet* set : kernels::available_kernels()) sets.emplace_back(set->name);
  std::set<int> threads;
  std::int64_t logits = 0, intermediates = 0, positions = 0;
  for (const VerifiedPath& path : report.paths) {
    threads.insert(path.threads);
    logits += path.logits;
    intermediates += path.intermediates;
  }
  for (const VerifyReport::Prompt& prompt : report.prompts) positions += std::ssize(prompt.tokens);
  const BuildInfo build = build_info();
  return {
      {"kvasir", build.version},
      {"revision", build.revision},
      {"compiler", build.compiler},
      {"build", build.type},
      {"processor", processor_name()},
      {"features", fmt::format("{}", fmt::join(processor_features(), " "))},
      {"kernels", fmt::format("{}", fmt::join(sets, " "))},
      {"threads", fmt::format("{}", fmt::join(threads, " "))},
      {"runs", fmt::format("{}", report.paths.size())},
      {"compared_logits", fmt::format("{}", logits)},
      {"compared_intermediates", fmt::format("{}", intermediates)},
      {"arithmetic", fmt::format("{}", kArithmeticVersion)},
      {"activations", options.model.activations == Activations::kF32 ? "f32" : "default"},
      {"kv_type", name_of(options.model.kv_type())},
      {"model", std::filesystem::path(model.path()).filename().string()},
      {"model_sha256", sha256_of_file(model.path())},
      {"prompts", fmt::format("{}, of {} tokens together", report.prompts.size(), positions)},
      {"prompts_sha256", report.prompts_sha256},
      {"logits_sha256", report.logits_sha256},
  };
}

// ---- For people

// Rows as the results come. Those that differ only in their number of threads share one.
class Table {
 public:
  void add(const VerifiedPath& path) {
    if (!row_.empty() && (row_.front().name != path.name || row_.front().kernel_set != path.kernel_set ||
                          row_.front().difference.has_value() != path.difference.has_value())) {
      flush();
    }
    row_.push_back(path);
  }

  void flush() {
    if (row_.empty()) return;
    if (!std::exchange(began_, true)) print_row("path", "kernels", "threads", "values compared", "result");
    std::vector<int> threads;
    std::int64_t values = 0;
    for (const VerifiedPath& path : row_) {
      threads.push_back(path.threads);
      values += path.logits + path.intermediates;
    }
    print_row(row_.front().name, row_.front().kernel_set, fmt::format("{}", fmt::join(threads, " ")),
              fmt::format("{}", values), row_.front().difference.has_value() ? "DIFFERENT" : "equal");
    row_.clear();
  }

 private:
  static void print_row(std::string_view path, std::string_view kernels, std::string_view threads,
                        std::string_view values, std::string_view result) {
    print(fmt::format("{:<26}{:<12}{:<10}{:>15}  {}\n", path, kernels, threads, values, result));
  }

  std::vector<VerifiedPath> row_;
  bool began_ = false;
};

std::string place_of(const VerifyDifference& difference) {
  return fmt::format("{}position {}, operation {}",
                     difference.layer < 0 ? "" : fmt::format("layer {}, ", difference.layer),
                     difference.position, to_string(difference.operation));
}

std::string run_again(const VerifyDifference::Again& again) {
  if (again.different == 0) return ": the right values when the path was run again";
  return fmt::format(": {} of {} values, largest difference {:.2g}", again.different, again.values,
                     again.largest);
}

std::string numbers_of(const VerifyReport& report, bool every_step) {
  std::vector<std::size_t> numbers;
  for (std::size_t i = 0; i < report.prompts.size(); ++i) {
    if (report.prompts[i].every_step == every_step) numbers.push_back(i + 1);
  }
  return fmt::format("{}", fmt::join(numbers, ", "));
}

void print_slow_path(const VerifyReport& report) {
  print("\nslow path: no cache, scalar kernels, 1 thread\n");
  const std::string every_step = numbers_of(report, true), one_run = numbers_of(report, false);
  if (!every_step.empty()) {
    print(fmt::format("  every position in a run of its own, from position 0: prompt {}\n", every_step));
  }
  if (!one_run.empty()) print(fmt::format("  all positions in one run: prompt {}\n", one_run));
}

void print_difference(const VerifiedPath& path, bool first) {
  const VerifyDifference& difference = *path.difference;
  print(fmt::format("{} difference: {}{}\n", first ? "first" : "another", place_of(difference),
                    difference.again.has_value() ? run_again(*difference.again) : ""));
  print(fmt::format(
      "  prompt {}, first on \"{}\" with {} kernels, {} thread{}; logits differ at {} of {} positions\n",
      difference.prompt + 1, path.name, path.kernel_set, path.threads, path.threads == 1 ? "" : "s",
      difference.logit_rows, path.positions));
}

void print_verdict(const VerifyReport& report) {
  const std::int64_t differing = report.differing();
  if (differing == 0) {
    print(fmt::format("\nEQUAL: all {} runs gave the bits of the slow path.\n", report.paths.size()));
    return;
  }
  print(fmt::format("\nDIFFERENT: {} of {} runs part from the slow path.\n", differing, report.paths.size()));
  std::set<std::string> places;
  for (const VerifiedPath& path : report.paths) {
    if (!path.difference.has_value()) continue;
    const std::string place = fmt::format("{} {}", path.difference->prompt, place_of(*path.difference));
    if (places.insert(place).second) print_difference(path, places.size() == 1);
  }
}

// ---- For programs

void write_difference(JsonWriter& json, const VerifyDifference& difference) {
  json.begin_object().field("layer", difference.layer).field("operation", to_string(difference.operation));
  json.field("prompt", difference.prompt + 1).field("position", difference.position);
  json.field("logit_rows", difference.logit_rows);
  if (difference.again.has_value()) {
    json.field("values", difference.again->values).field("different", difference.again->different);
    json.field("largest", difference.again->largest);
  }
  json.end_object();
}

std::string to_json(const VerifyReport& report, const Receipt& receipt) {
  JsonWriter json;
  json.begin_object().field("equal", report.differing() == 0).field("differing", report.differing());
  json.key("prompts").begin_array();
  for (const VerifyReport::Prompt& prompt : report.prompts) {
    json.begin_object();
    write_ids(json.key("ids"), prompt.tokens);
    json.field("slow_path", prompt.every_step ? "every step" : "one run");
    json.field("logits_sha256", prompt.logits_sha256).end_object();
  }
  json.end_array().key("runs").begin_array();
  for (const VerifiedPath& path : report.paths) {
    json.begin_object().field("path", path.name).field("kernels", path.kernel_set);
    json.field("threads", path.threads).field("positions", path.positions).field("logits", path.logits);
    json.field("intermediates", path.intermediates).field("equal", !path.difference.has_value());
    if (path.difference.has_value()) write_difference(json.key("first_difference"), *path.difference);
    json.end_object();
  }
  json.end_array().key("receipt").begin_object();
  for (const auto& [key, value] : receipt) json.field(key, value);
  return json.end_object().end_object().text() + "\n";
}

int run(const Options& options) {
  Executor executor(options.model.threads);
  const LanguageModel model = options.model.load(executor);
  VerifyOptions verify_options = options.verify;
  verify_options.kv_type = options.model.kv_type();
  verify_options.threads = options.model.threads;

  ProgressLine line;
  Table table;
  std::int64_t compared = 0;
  VerifyProgress progress;
  progress.slow_path = [&](double share) { line.show(fmt::format("slow path: {:.0f} %", 100.0 * share)); };
  progress.path_compared = [&](const VerifiedPath& path) {
    line.show("");
    if (!options.json) table.add(path);
    line.show(fmt::format("{} runs compared", ++compared));
  };
  const VerifyReport report = verify(model.model(), read_prompts(options, model), verify_options, progress);
  line.show("");

  const Receipt receipt = make_receipt(options, model, report);
  if (options.json) {
    print(to_json(report, receipt));
  } else {
    table.flush();
    print_slow_path(report);
    print_verdict(report);
    print("\n");
    for (const auto& [key, value] : receipt) print(fmt::format("{}: {}\n", key, value));
  }
  return report.differing() == 0 ? kDone : kFailed;
}

}  // namespace

void add_verify(CLI::App& program, Action& chosen) {
  CLI::App& command = *program.add_subcommand("verify",
                                              "Prove on this machine that every path gives the bits of the "
                                              "slowest one (a few minutes; --quick: seconds)");
  const auto options = std::make_shared<Options>();
  options->model.add(command);
  command.get_option("--threads")
      ->description("Threads to try besides 1, 2 and 3; 0 is as many as this process may use");
  command.add_option("-f,--file", options->prompt.file,
                     "Prompts, one a line (default: built in, the same on every machine)");
  command.add_flag("--quick", options->verify.quick,
                   "Fewer and shorter prompts; not every path with every kernel set and number of threads");
  command.add_flag("--json", options->json, "One JSON document");
  command.add_option("--flip-bit", options->verify.flip_bit)->group("");  // hidden: for tests of this command
  command.callback([options, &chosen] { chosen = [options] { return run(*options); }; });
}

}  // namespace kvasir::cli
