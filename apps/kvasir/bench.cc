// kvasir bench: how fast the model runs here, beside what the machine can do.
#include "kvasir/bench.h"

#include <fmt/format.h>

#include <iostream>
#include <memory>
#include <optional>

#include "base/json_writer.h"
#include "command.h"
#include "kvasir/error.h"
#include "table.h"

namespace kvasir::cli {
namespace {

struct Options {
  ModelOptions model;
  BenchOptions bench;
  bool json = false;
  bool csv = false;
  bool take_turns = false;
};

const char* kind_name(const BenchRow& row) {
  switch (row.kind) {
    case BenchRow::Kind::kPrefill:
      return "prefill";
    case BenchRow::Kind::kDecode:
      return "decode";
    case BenchRow::Kind::kRequests:
      return "requests";
  }
  return "";
}

// ---- JSON

void write_number(JsonWriter& json, const char* name, const std::optional<double>& value) {
  json.key(name);
  value ? json.value(*value) : json.null();
}

void write_numbers(JsonWriter& json, const char* name, const std::vector<double>& values) {
  json.key(name).begin_array();
  for (const double value : values) json.value(value);
  json.end_array();
}

void write_spread(JsonWriter& json, const char* name, const std::optional<Spread>& spread) {
  json.key(name);
  if (!spread) {
    json.null();
    return;
  }
  json.begin_object().field("median", spread->median).field("min", spread->least);
  json.field("max", spread->most).end_object();
}

void write_requests(JsonWriter& json, const BenchRow& row) {
  json.key("requests");
  if (!row.requests) {
    json.null();
    return;
  }
  const BenchRow::Requests& requests = *row.requests;
  json.begin_object().field("new_tokens", requests.new_tokens).field("decode_tokens", requests.decode_tokens);
  write_numbers(json, "decode_seconds", requests.decode_seconds);
  write_spread(json, "decode_tokens_per_second", requests.decode_tokens_per_second());
  write_numbers(json, "schedule_seconds", requests.schedule_seconds);
  write_number(json, "schedule_share", row.schedule_share());
  write_numbers(json, "draw_seconds", requests.draw_seconds);
  write_number(json, "draw_share", row.draw_share());
  json.end_object();
}

void write_row(JsonWriter& json, const BenchRow& row) {
  json.begin_object().field("test", kind_name(row)).field("tokens", row.tokens).field("depth", row.depth);
  json.field("batch", row.batch).field("threads", row.threads);
  write_numbers(json, "seconds", row.seconds);
  write_spread(json, "tokens_per_second", row.tokens_per_second());
  write_number(json, "bytes_read", row.bytes_read);
  write_number(json, "bytes_per_second", row.bytes_per_second());
  write_spread(json, "peak_bytes_per_second", row.read_peak);
  write_number(json, "read_share", row.read_share());
  json.field("operations", row.operations).field("operations_per_second", row.operations_per_second());
  write_spread(json, "peak_operations_per_second", row.operations_peak);
  json.field("operations_share", row.operations_share());
  write_requests(json, row);
  json.end_object();
}

std::string to_json(const BenchReport& report) {
  JsonWriter json;
  json.begin_object().field("model", report.model).field("kernels", report.kernels);
  json.field("products", report.products).field("weight_bytes", report.weight_bytes);
  json.field("load_seconds", report.load_seconds).field("first_token_seconds", report.first_token_seconds);
  json.key("rows").begin_array();
  for (const BenchRow& row : report.rows) write_row(json, row);
  return json.end_array().end_object().text() + "\n";
}

// ---- CSV

template <class Number>
std::string csv_number(const std::optional<Number>& value) {
  return value ? fmt::format("{}", *value) : "";
}

std::string to_csv(const BenchReport& report) {
  std::string out =
      "model,kernels,products,weight_bytes,load_seconds,first_token_seconds,test,tokens,depth,batch,threads,"
      "tokens_per_second,tokens_per_second_min,tokens_per_second_max,bytes_per_second,peak_bytes_per_second,"
      "read_share,operations_per_second,peak_operations_per_second,operations_share,new_tokens,"
      "decode_tokens_per_second,decode_tokens_per_second_min,decode_tokens_per_second_max,schedule_share,"
      "draw_share\n";
  for (const BenchRow& row : report.rows) {
    const Spread rate = row.tokens_per_second();
    out += fmt::format("{},{},{},{},{},{},", csv_text(report.model), report.kernels, report.products,
                       report.weight_bytes, report.load_seconds, report.first_token_seconds);
    out += fmt::format("{},{},{},{},{},{},{},{},", kind_name(row), row.tokens, row.depth, row.batch,
                       row.threads, rate.median, rate.least, rate.most);
    out += fmt::format("{},{},{},{},{},{},", csv_number(row.bytes_per_second()), row.read_peak.median,
                       csv_number(row.read_share()), row.operations_per_second(), row.operations_peak.median,
                       row.operations_share());
    std::optional<std::int64_t> new_tokens;
    std::optional<Spread> decode;
    if (row.requests) {
      new_tokens = row.requests->new_tokens;
      decode = row.requests->decode_tokens_per_second();
    }
    out += fmt::format("{},{},{},{}\n", csv_number(new_tokens),
                       decode ? fmt::format("{},{},{}", decode->median, decode->least, decode->most) : ",,",
                       csv_number(row.schedule_share()), csv_number(row.draw_share()));
  }
  return out;
}

// ---- Markdown

std::string least_to_most(const Spread& spread) {
  return short_number(spread.least) + " to " + short_number(spread.most);
}

std::string passes_table(const BenchReport& report) {
  std::vector<std::vector<std::string>> lines = {{"test", "depth", "batch", "threads", "tokens/s",
                                                  "min to max", "GB/s read", "of peak", "GOP/s", "of peak"}};
  for (const BenchRow& row : report.rows) {
    if (row.requests) continue;
    const Spread rate = row.tokens_per_second();
    lines.push_back({fmt::format("{} {}", kind_name(row), row.tokens), fmt::format("{}", row.depth),
                     fmt::format("{}", row.batch), fmt::format("{}", row.threads), short_number(rate.median),
                     least_to_most(rate), fmt::format("{:.1f}", *row.bytes_per_second() / 1e9),
                     fmt::format("{:.0f} %", 100 * *row.read_share()),
                     fmt::format("{:.1f}", row.operations_per_second() / 1e9),
                     fmt::format("{:.0f} %", 100 * row.operations_share())});
  }
  return lines.size() > 1 ? "\n" + markdown_table(lines) : "";
}

std::string requests_table(const BenchReport& report) {
  std::vector<std::vector<std::string>> lines = {{"test", "requests", "threads", "tokens/s", "min to max",
                                                  "decode tokens/s", "min to max", "scheduling", "drawing",
                                                  "GOP/s", "of peak"}};
  for (const BenchRow& row : report.rows) {
    if (!row.requests) continue;
    const Spread rate = row.tokens_per_second();
    const std::optional<Spread> decode = row.requests->decode_tokens_per_second();
    const std::int64_t new_tokens = row.requests->new_tokens;
    lines.push_back({fmt::format("{}+{}", row.tokens - new_tokens, new_tokens), fmt::format("{}", row.batch),
                     fmt::format("{}", row.threads), short_number(rate.median), least_to_most(rate),
                     decode ? short_number(decode->median) : "-", decode ? least_to_most(*decode) : "-",
                     fmt::format("{:.2g} %", 100 * *row.schedule_share()),
                     fmt::format("{:.2g} %", 100 * *row.draw_share()),
                     fmt::format("{:.1f}", row.operations_per_second() / 1e9),
                     fmt::format("{:.0f} %", 100 * row.operations_share())});
  }
  return lines.size() > 1 ? "\n" + markdown_table(lines) : "";
}

std::string to_markdown(const BenchReport& report) {
  const std::string head = fmt::format(
      "{}: {:.1f} MB of weights, {} kernels, {} products; loaded in {:.3f} s, first token after {:.3f} s\n",
      report.model, static_cast<double>(report.weight_bytes) / 1e6, report.kernels, report.products,
      report.load_seconds, report.first_token_seconds);
  return head + passes_table(report) + requests_table(report);
}

// Another program measures while this one sleeps here.
void await_turn() {
  note("ready");
  std::string line;
  if (!std::getline(std::cin, line)) {
    throw Error(ErrorKind::kIo, "standard input has ended, but --take-turns waits for a line");
  }
}

int run(const Options& options) {
  if (options.json && options.csv) {
    throw Error(ErrorKind::kInvalidArgument, "give --json or --csv, not both");
  }
  BenchOptions bench_options = options.bench;
  bench_options.activations = options.model.activations;
  bench_options.kv_type = options.model.kv_type();
  ProgressLine line;
  const auto progress = [&](std::int64_t done, std::int64_t all) {
    if (options.take_turns) {
      await_turn();
    } else {
      line.show(fmt::format("{} of {}", done, all));
    }
  };
  const BenchReport report = bench(options.model.resolved_path(), bench_options, progress);
  line.show("");
  print(options.json ? to_json(report) : options.csv ? to_csv(report) : to_markdown(report));
  return kDone;
}

}  // namespace

void add_bench(CLI::App& program, Action& chosen) {
  CLI::App& command =
      *program.add_subcommand("bench", "Speed of prefill and decoding, beside what the machine can do");
  const auto options = std::make_shared<Options>();
  BenchOptions& bench = options->bench;
  options->model.add_path(command);
  add_numbers(command, "-p,--prefill", bench.prefill, "Tokens of a prompt; 0 measures no prefill");
  add_numbers(command, "-n,--decode", bench.decode, "Tokens to decode; 0 measures no decoding");
  add_numbers(command, "-d,--depth", bench.depths, "Positions in the cache before that");
  add_numbers(command, "-b,--batch", bench.batches, "Sequences that decode together");
  add_numbers(command, "-R,--requests", bench.requests,
              "Requests that an engine runs together; 0 measures none");
  add_number(command, "--request-prompt", bench.request_prompt, "Tokens of each request's prompt");
  add_number(command, "--request-new", bench.request_new, "New tokens of each request");
  add_numbers(command, "-t,--threads", bench.threads, "Threads; 0 is as many as this process may use");
  add_number(command, "-r,--repetitions", bench.repetitions, "Repetitions of each measurement");
  add_number(command, "--prefill-chunk", bench.prefill_chunk,
             "Prompt tokens per forward pass; of requests, tokens per step");
  options->model.add_types(command);
  command.add_flag("--take-turns", options->take_turns,
                   "Before each repetition, write \"ready\" to standard error and wait for a line of input");
  command.add_flag("--json", options->json, "One JSON document");
  command.add_flag("--csv", options->csv, "Comma-separated values, one line a measurement");
  command.callback([options, &chosen] { chosen = [options] { return run(*options); }; });
}

}  // namespace kvasir::cli
