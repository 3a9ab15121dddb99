// kvasir generate: text from a prompt, streamed.
#include "kvasir/generate.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>

#include "base/json_writer.h"
#include "command.h"
#include "completer.h"
#include "interrupt.h"
#include "kernels/kernels.h"
#include "kvasir/error.h"

namespace kvasir::cli {
namespace {

struct Options {
  ModelOptions model;
  RunCliOptions run;
  PromptOptions prompt;
  SamplingOptions sampling;
  SpeculationOptions speculation;
  std::optional<std::int64_t> logprobs;
  bool json = false;
  bool explain = false;
  bool stats = false;
};

// One line a token, for people: what each stage left, and who won the draw.
std::string explanation(const Tokenizer& tokenizer, std::size_t index, const GeneratedToken& token) {
  const SamplerTrace& trace = *token.trace;
  std::string line = fmt::format("{:>4}  {:>6} {:<16} kept: top-k {}, top-p {}, min-p {} | ", index, token.id,
                                 in_quotes(tokenizer.decode({&token.id, 1}, false)), trace.kept_top_k,
                                 trace.kept_top_p, trace.kept_min_p);
  std::size_t shown = 0;
  for (const SamplerTrace::Candidate& candidate : trace.candidates) {
    if (shown++ == 5) break;
    line += fmt::format(" {} p={:.4f} {:+.3f} noise {:+.3f} = {:+.3f};",
                        in_quotes(tokenizer.decode({&candidate.token, 1}, false)), candidate.probability,
                        candidate.score - candidate.noise, candidate.noise, candidate.score);
  }
  return line;
}

void write_trace(JsonWriter& json, const SamplerTrace& trace) {
  json.begin_object();
  json.field("kept_top_k", trace.kept_top_k)
      .field("kept_top_p", trace.kept_top_p)
      .field("kept_min_p", trace.kept_min_p);
  json.key("candidates").begin_array();
  for (const SamplerTrace::Candidate& candidate : trace.candidates) {
    json.begin_object().field("id", candidate.token).field("logit", candidate.logit);
    json.field("probability", candidate.probability)
        .field("noise", candidate.noise)
        .field("score", candidate.score);
    json.end_object();
  }
  json.end_array().end_object();
}

void write_logprobs(JsonWriter& json, const GenerateResult& result) {
  json.key("logprobs").begin_array();
  for (std::size_t i = 0; i < result.logprobs.size(); ++i) {
    json.begin_object()
        .field("id", result.tokens[i])
        .field("logprob", result.logprobs[i].chosen)
        .key("top")
        .begin_array();
    for (const auto& [id, logprob] : result.logprobs[i].top) {
      json.begin_object().field("id", id).field("logprob", logprob).end_object();
    }
    json.end_array().end_object();
  }
  json.end_array();
}

std::string result_json(const LanguageModel& model, Executor& executor, const GenerateRequest& request,
                        Speculation speculation, const ChoiceResult& result, double load_seconds,
                        const std::vector<SamplerTrace>& traces) {
  JsonWriter json;
  json.begin_object().field("model", model.path()).field("fingerprint", model.fingerprint(request.kv_type));
  json.field("prompt_tokens", request.prompt.size()).field("completion_tokens", result.tokens.size());
  write_ids(json.key("prompt_ids"), request.prompt);
  write_ids(json.key("tokens"), result.tokens);
  json.field("text", result.text)
      .field("finish_reason", finish_reason_name(result.finish_reason))
      .key("stop_reason");
  if (result.stop_reason.has_value()) {
    json.value(*result.stop_reason);
  } else {
    json.null();
  }
  json.field("seed", request.sampling.seed);
  if (request.logprobs.has_value()) write_logprobs(json, result);
  if (!traces.empty()) {
    json.key("explain").begin_array();
    for (const SamplerTrace& trace : traces) write_trace(json, trace);
    json.end_array();
  }
  if (speculation != Speculation::kNone) {
    json.key("speculation").begin_object().field("drafted", result.drafted);
    json.field("accepted", result.accepted).end_object();
  }
  json.key("timings").begin_object().field("load_s", load_seconds).field("prefill_s", result.prefill_seconds);
  json.field("decode_s", result.decode_seconds);
  json.field("prefill_tok_s", per_second(std::ssize(request.prompt), result.prefill_seconds));
  json.field("decode_tok_s", per_second(std::ssize(result.tokens), result.decode_seconds)).end_object();
  json.field("kernels", executor.kernels().name).field("threads", executor.threads());
  return json.end_object().text() + "\n";
}

// Of the prompt and its answer, where the model has so many. At least one: what does not fit is refused
// later.
std::int64_t positions_needed(const GenerateRequest& request, std::int64_t context) {
  const std::int64_t answer = std::clamp<std::int64_t>(request.max_tokens.value_or(context), 0, context);
  return std::clamp<std::int64_t>(std::ssize(request.prompt) + answer, 1, context);
}

int run(const Options& options) {
  if (options.logprobs.value_or(0) < 0) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("logprobs is {}, must not be negative", *options.logprobs));
  }
  GenerateRequest request = options.sampling.request(options.run, options.model.kv_type());
  if (options.logprobs.has_value()) request.logprobs = static_cast<std::size_t>(*options.logprobs);
  request.trace = options.explain;
  const Speculation speculation = options.speculation.kind();

  const auto start = std::chrono::steady_clock::now();
  Executor executor(options.model.threads);
  const LanguageModel model = options.model.load(executor);
  const std::optional<LanguageModel> draft = options.speculation.load_draft(options.model, executor);
  const double load_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  request.prompt = options.prompt.encode(model);
  Completer completer(model, draft ? &*draft : nullptr, executor, request, speculation,
                      positions_needed(request, model.model().config().max_seq));

  std::vector<SamplerTrace> traces;
  std::size_t index = 0;
  const InterruptFlag interrupt;
  const ChoiceResult result = completer.complete(request, [&](const GeneratedToken& token) {
    if (options.explain && options.json) traces.push_back(*token.trace);
    if (options.explain && !options.json) note(explanation(model.tokenizer(), index, token));
    ++index;
    if (!options.json) print(token.text);
    return !interrupt.raised();
  });
  if (options.json) print(result_json(model, executor, request, speculation, result, load_seconds, traces));
  if (!options.json && stdout_is_terminal()) print("\n");
  if (options.stats) {
    note(fmt::format("{}; loaded in {:.2f} s; {} threads, {} kernels", summary(request, result), load_seconds,
                     executor.threads(), executor.kernels().name));
  }
  return result.finish_reason == FinishReason::kCancelled ? kInterrupted : kDone;
}

}  // namespace

void add_generate(CLI::App& program, Action& chosen) {
  CLI::App& command = *program.add_subcommand("generate", "Continue a text");
  const auto options = std::make_shared<Options>();
  options->prompt.add(command, true);
  options->model.add(command);
  options->sampling.add(command);
  options->run.add(command);
  options->speculation.add(command);
  add_number(command, "--logprobs", options->logprobs,
             "With --json: each token's logprob, and so many alternatives");
  command.add_flag("--explain", options->explain,
                   "Show for each token what the sampler's stages kept and the draw");
  command.add_flag("--stats", options->stats, "Speed, on standard error");
  command.add_flag("--json", options->json, "One JSON document instead of the text");
  command.callback([options, &chosen] { chosen = [options] { return run(*options); }; });
}

}  // namespace kvasir::cli
