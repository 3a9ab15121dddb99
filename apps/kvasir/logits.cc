// kvasir logits: the model's numbers for every position, as a hash, a file or a table.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>

#include "base/json_writer.h"
#include "base/sha256.h"
#include "command.h"
#include "formats/safetensors.h"
#include "kernels/kernels.h"
#include "kvasir/error.h"
#include "kvasir/sequence_runner.h"

namespace kvasir::cli {
namespace {

struct Options {
  ModelOptions model;
  RunCliOptions run;
  PromptOptions prompt;
  std::string out;
  bool sha256 = false;
  std::int64_t top = 0;
  bool json = false;
};

struct Scored {
  TokenId id;
  float logit;
};

// The n largest, best first; equal ones by id.
std::vector<Scored> largest(std::span<const float> row, std::int64_t n) {
  std::vector<TokenId> ids(row.size());
  std::iota(ids.begin(), ids.end(), 0);
  const auto count = std::min<std::ptrdiff_t>(n, static_cast<std::ptrdiff_t>(ids.size()));
  const auto logit = [&](TokenId id) { return row[static_cast<std::size_t>(id)]; };
  std::partial_sort(ids.begin(), ids.begin() + count, ids.end(),
                    [&](TokenId a, TokenId b) { return logit(a) != logit(b) ? logit(a) > logit(b) : a < b; });
  std::vector<Scored> result;
  for (std::ptrdiff_t i = 0; i < count; ++i) {
    const TokenId id = ids[static_cast<std::size_t>(i)];
    result.push_back({id, logit(id)});
  }
  return result;
}

// What becomes of the rows as they come: they are not kept unless a file is wanted.
struct Sink {
  const Options& options;
  std::size_t vocab;
  Sha256 hash;
  std::vector<float> kept;                // for --out
  std::vector<std::vector<Scored>> tops;  // for --top
  bool finite = true;

  void take(std::span<const float> logits) {
    finite =
        finite && std::all_of(logits.begin(), logits.end(), [](float value) { return std::isfinite(value); });
    if (options.sha256) hash.update(std::as_bytes(logits));
    if (!options.out.empty()) kept.insert(kept.end(), logits.begin(), logits.end());
    if (options.top <= 0) return;
    for (std::size_t at = 0; at < logits.size(); at += vocab)
      tops.push_back(largest(logits.subspan(at, vocab), options.top));
  }
};

void run_all(const Options& options, const LanguageModel& model, Executor& executor,
             std::span<const TokenId> ids, Sink& sink) {
  const auto count = static_cast<std::int64_t>(ids.size());
  SequenceRunner runner(model.model(), executor, 1, count, options.model.kv_type(), options.run.get());
  // Without a cache each position gets its own run from position 0; else the runs are the prefill chunks.
  std::int64_t at_once = options.run.no_cache ? 1 : options.run.prefill_chunk;
  if (at_once == 0) at_once = count;
  for (std::int64_t begin = 0; begin < count; begin += at_once) {
    const std::int64_t n = std::min(at_once, count - begin);
    sink.take(runner.append(ids.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(n)), n));
  }
}

void write_file(const std::string& path, std::span<const TokenId> ids, const std::vector<float>& logits) {
  const auto rows = static_cast<std::uint64_t>(ids.size());
  write_safetensors(path, {{"logits", "F32", {rows, logits.size() / rows}, std::as_bytes(std::span(logits))},
                           {"tokens", "I32", {rows}, std::as_bytes(ids)}});
}

std::string to_json(const Options& options, const LanguageModel& model, std::span<const TokenId> ids,
                    const Sink& sink, const std::string& digest) {
  JsonWriter json;
  json.begin_object()
      .field("model", model.path())
      .field("n_tokens", ids.size())
      .field("vocab_size", sink.vocab);
  write_ids(json.key("ids"), ids);
  if (options.sha256) json.field("sha256", digest);
  if (!options.out.empty()) json.field("out", options.out);
  if (options.top > 0) {
    json.key("top").begin_array();
    for (const auto& row : sink.tops) {
      json.begin_array();
      for (const Scored& scored : row)
        json.begin_object().field("id", scored.id).field("logit", scored.logit).end_object();
      json.end_array();
    }
    json.end_array();
  }
  return json.end_object().text() + "\n";
}

int run(Options options) {
  if (options.top < 0) {
    throw Error(ErrorKind::kInvalidArgument, fmt::format("top is {}, must not be negative", options.top));
  }
  if (!options.sha256 && options.out.empty() && options.top == 0) options.top = 5;
  Executor executor(options.model.threads);
  const LanguageModel model = options.model.load(executor);
  const std::vector<TokenId> ids = options.prompt.encode(model);
  if (ids.empty()) throw Error(ErrorKind::kInvalidArgument, "no tokens: give a text or --tokens");
  if (static_cast<std::int64_t>(ids.size()) > model.model().config().max_seq) {
    throw Error(ErrorKind::kCapacity, fmt::format("{} tokens do not fit the context of {}", ids.size(),
                                                  model.model().config().max_seq));
  }
  Sink sink{options, static_cast<std::size_t>(model.model().config().vocab_size), {}, {}, {}};
  run_all(options, model, executor, ids, sink);
  if (!options.out.empty()) write_file(options.out, ids, sink.kept);
  const std::string digest = options.sha256 ? sink.hash.hex_digest() : "";
  if (options.json) {
    print(to_json(options, model, ids, sink, digest));
  } else {
    for (std::size_t i = 0; i < sink.tops.size(); ++i) {
      std::string line =
          fmt::format("{:>5} {:>6} {:<14}", i, ids[i], in_quotes(model.tokenizer().token_bytes(ids[i])));
      for (const Scored& scored : sink.tops[i]) {
        line += fmt::format("  {} {} {:.4f}", scored.id, in_quotes(model.tokenizer().token_bytes(scored.id)),
                            scored.logit);
      }
      print(line + "\n");
    }
    if (options.sha256) print(digest + "\n");
  }
  if (!sink.finite) throw Error(ErrorKind::kRuntime, "some logits are not finite");
  return kDone;
}

}  // namespace

void add_logits(CLI::App& program, Action& chosen) {
  CLI::App& command = *program.add_subcommand("logits", "The logits of every position of a text");
  const auto options = std::make_shared<Options>();
  options->prompt.add(command, true);
  options->model.add(command);
  options->run.add(command);
  command.add_flag("--sha256", options->sha256,
                   "Hash of all logits as little-endian float32, positions in order");
  command.add_option("--out", options->out,
                     "Write logits [tokens, vocabulary] and tokens to this safetensors file");
  add_number(command, "--top", options->top, "Show the N largest of each position");
  command.add_flag("--json", options->json, "One JSON document");
  command.callback([options, &chosen] { chosen = [options] { return run(*options); }; });
}

}  // namespace kvasir::cli
