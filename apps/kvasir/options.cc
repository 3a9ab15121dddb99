#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <limits>
#include <map>
#include <random>
#include <type_traits>

#include "base/json_writer.h"
#include "command.h"
#include "kvasir/error.h"

namespace kvasir::cli {
namespace {

constexpr std::string_view kDraft = "draft:";
constexpr const char* kDefaultModel = "SmolLM2-135M-Instruct.Q4_1.gguf";

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

template <class Number>
Number parse_number(std::string_view text, const std::string& what) {
  Number number{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw Error(ErrorKind::kInvalidArgument, fmt::format("{}: \"{}\" is no number that fits", what, text));
  }
  return number;
}

std::string read_stream(std::istream& in, const std::string& name) {
  std::string text;
  std::array<char, 65536> part;
  while (in.read(part.data(), part.size()), in.gcount() > 0) {
    text.append(part.data(), static_cast<std::size_t>(in.gcount()));
  }
  if (in.bad())
    throw Error(ErrorKind::kIo, fmt::format("{}: cannot be read: {}", name, std::strerror(errno)));
  return text;
}

template <class Number>
struct Unwrapped {
  using type = Number;
};
template <class Number>
struct Unwrapped<std::optional<Number>> {
  using type = Number;
};

template <class Enum>
void add_choice(CLI::App& command, const std::string& name, Enum& value,
                const std::map<std::string, typename Unwrapped<Enum>::type>& choices,
                const std::string& what) {
  const auto choose = [&value, name, choices](const std::string& text) {
    const auto choice = choices.find(text);
    if (choice == choices.end()) {
      std::string names;
      for (const auto& [known, unused] : choices) names += (names.empty() ? "" : ", ") + known;
      throw CLI::ValidationError(name, fmt::format("\"{}\" is none of {}", text, names));
    }
    value = choice->second;
  };
  command.add_option_function<std::string>(name, choose, what)->take_last();
}

}  // namespace

template <class Number>
void add_number(CLI::App& command, const std::string& name, Number& value, const std::string& what) {
  const std::string long_name = name.substr(name.find("--"));
  const auto set = [&value, long_name](const std::string& text) {
    value = parse_number<typename Unwrapped<Number>::type>(text, long_name);
  };
  CLI::Option* option =
      command.add_option_function<std::string>(name, set, what)->type_name("NUMBER")->take_last();
  if constexpr (std::is_arithmetic_v<Number>) option->default_str(fmt::format("{}", value));
}

template <class Number>
void add_numbers(CLI::App& command, const std::string& name, std::vector<Number>& values,
                 const std::string& what) {
  const std::string long_name = name.substr(name.find("--"));
  const auto set = [&values, long_name](const std::string& text) {
    values.clear();
    for (std::size_t begin = 0; begin <= text.size();) {
      const std::size_t end = std::min(text.find(',', begin), text.size());
      values.push_back(parse_number<Number>(std::string_view(text).substr(begin, end - begin), long_name));
      begin = end + 1;
    }
  };
  command.add_option_function<std::string>(name, set, what)
      ->type_name("NUMBER,...")
      ->take_last()
      ->default_str(fmt::format("{}", fmt::join(values, ",")));
}

template void add_number(CLI::App&, const std::string&, int&, const std::string&);
template void add_number(CLI::App&, const std::string&, std::int64_t&, const std::string&);
template void add_number(CLI::App&, const std::string&, double&, const std::string&);
template void add_number(CLI::App&, const std::string&, std::optional<std::int64_t>&, const std::string&);
template void add_numbers(CLI::App&, const std::string&, std::vector<int>&, const std::string&);
template void add_numbers(CLI::App&, const std::string&, std::vector<std::int64_t>&, const std::string&);
template void add_numbers(CLI::App&, const std::string&, std::vector<double>&, const std::string&);

void ModelOptions::add_path(CLI::App& command) {
  command.add_option("-m,--model", path,
                     "GGUF file (default: $KVASIR_MODEL, else the model of script/bootstrap)");
}

void ModelOptions::add(CLI::App& command) {
  add_path(command);
  add_number(command, "-t,--threads", threads, "Threads; 0 is as many as this process may use");
  add_types(command);
}

void ModelOptions::add_types(CLI::App& command) {
  add_choice<Activations>(
      command, "--activations", activations, {{"default", Activations::kDefault}, {"f32", Activations::kF32}},
      "Inputs of linear layers: default (8-bit blocks where the weights are quantized) or f32 (slower; to "
      "compare with float references)");
  add_choice<std::optional<KvType>>(
      command, "--kv-type", chosen_kv_type,
      {{"f32", KvType::kF32}, {"f16", KvType::kF16}, {"bf16", KvType::kBF16}},
      "Numbers in the KV cache: f16, bf16 or f32 (default: f16; f32 with --activations f32)");
}

LanguageModel ModelOptions::load(const std::string& file, Executor& executor) const {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point start = Clock::now();
  ProgressLine line;
  return LanguageModel::load(file, activations, executor, [&](double share) {
    // A small model is there before anybody could read the line.
    if (Clock::now() - start < std::chrono::milliseconds(300)) return;
    line.show(fmt::format("loading: {:.0f} %", 100.0 * share));
  });
}

std::string ModelOptions::resolved_path() const {
  if (!path.empty()) return path;
  if (!environment("KVASIR_MODEL").empty()) return environment("KVASIR_MODEL");
  const std::string data = environment("XDG_DATA_HOME");
  std::string model =
      (data.empty() ? environment("HOME") + "/.local/share" : data) + "/kvasir/models/" + kDefaultModel;
  if (access(model.c_str(), R_OK) != 0) {
    throw Error(ErrorKind::kIo,
                fmt::format("no model: {} is not there; run script/bootstrap or give -m FILE", model));
  }
  return model;
}

void RunCliOptions::add(CLI::App& command) {
  command.add_flag("--no-cache", no_cache,
                   "Run the whole sequence again at every step (the naive path; slow)");
  add_number(command, "--prefill-chunk", prefill_chunk,
             "Prompt tokens per forward pass; 0 takes all at once");
}

void PromptOptions::add(CLI::App& command, bool with_tokens) {
  command.add_option("text", text, "The text (default: standard input)");
  command.add_option("-f,--file", file, "Read the text from this file, as it is");
  command.add_flag("--parse-control", parse_control,
                   "Spellings of control tokens in the text mean those tokens");
  if (with_tokens) command.add_option("--tokens", tokens, "Token ids (1,2,3) instead of a text");
}

std::string PromptOptions::read_text() const {
  if (text.has_value() && !file.empty()) {
    throw Error(ErrorKind::kInvalidArgument, "give the text or -f FILE, not both");
  }
  if (text.has_value()) return *text;
  if (file.empty()) return read_stream(std::cin, "standard input");
  std::ifstream in(file, std::ios::binary);
  if (!in) throw Error(ErrorKind::kIo, fmt::format("{}: cannot be opened: {}", file, std::strerror(errno)));
  return read_stream(in, file);
}

std::vector<TokenId> PromptOptions::encode(const LanguageModel& model) const {
  if (!tokens.has_value()) return model.encode_prompt(read_text(), control());
  if (text.has_value() || !file.empty()) {
    throw Error(ErrorKind::kInvalidArgument, "give a text or --tokens, not both");
  }
  return parse_ids(*tokens);
}

std::vector<TokenId> parse_ids(std::string_view text) {
  std::vector<TokenId> ids;
  constexpr std::string_view kSeparators = ", \t\r\n";
  for (std::size_t begin = text.find_first_not_of(kSeparators); begin != std::string_view::npos;) {
    const std::size_t end = std::min(text.find_first_of(kSeparators, begin), text.size());
    ids.push_back(parse_number<TokenId>(text.substr(begin, end - begin), "token id"));
    begin = text.find_first_not_of(kSeparators, end);
  }
  return ids;
}

void SamplingOptions::add(CLI::App& command) {
  add_number(command, "-n,--max-tokens", max_tokens,
             "Tokens to generate at most (default: until the context is full)");
  add_number(command, "--temperature", params.temperature, "0 is greedy");
  add_number(command, "--top-k", params.top_k, "Keep the k most probable; 0 is off");
  add_number(command, "--top-p", params.top_p, "Keep the most probable until their mass reaches p; 1 is off");
  add_number(command, "--min-p", params.min_p,
             "Keep those with at least this share of the largest probability; 0 is off");
  add_number(command, "--repetition-penalty", params.repetition_penalty,
             "Divides (multiplies, if negative) logits seen before");
  add_number(command, "--presence-penalty", params.presence_penalty,
             "Subtracted once from logits of generated tokens");
  add_number(command, "--frequency-penalty", params.frequency_penalty,
             "Subtracted for each time a token was generated");
  add_number(command, "--penalty-window", params.penalty_window,
             "Tokens the penalties look back on; 0 is all");
  command.add_option("--logit-bias", logit_bias, "ID:VALUE, added to that token's logit; may be given often")
      ->allow_extra_args(false);  // what follows the value is the prompt
  command.add_option("--seed", seed, "Seed of the draw, 0 to 2^64-1, or \"random\"")
      ->capture_default_str()
      ->take_last();
  command.add_option("--stop", stop, "Text that ends the generation; may be given often")
      ->allow_extra_args(false);
  command.add_flag("--ignore-eos", ignore_eos, "Go on after the model's end token");
  add_number(command, "--context", context, "Positions to use at most; 0 is the model's own");
}

SamplingParams SamplingOptions::sampling() const {
  SamplingParams result = params;
  if (seed == "random") {
    std::random_device device;
    result.seed = (std::uint64_t{device()} << 32) | device();
  } else {
    result.seed = parse_number<std::uint64_t>(seed, "seed");
  }
  for (const std::string& bias : logit_bias) {
    const std::size_t colon = bias.find(':');
    if (colon == std::string::npos) {
      throw Error(ErrorKind::kInvalidArgument, fmt::format("logit_bias: \"{}\" is not ID:VALUE", bias));
    }
    result.logit_bias.emplace_back(
        parse_number<TokenId>(std::string_view(bias).substr(0, colon), "logit_bias id"),
        parse_number<double>(std::string_view(bias).substr(colon + 1), "logit_bias value"));
  }
  check_sampling_params(result, std::numeric_limits<std::int32_t>::max());
  return result;
}

GenerateRequest SamplingOptions::request(const RunCliOptions& run, KvType kv_type) const {
  GenerateRequest request;
  request.sampling = sampling();
  request.max_tokens = max_tokens;
  request.context = context;
  request.stop = stop;
  request.ignore_eos = ignore_eos;
  request.run = run.get();
  request.kv_type = kv_type;
  return request;
}

void SpeculationOptions::add(CLI::App& command) {
  command
      .add_option("--speculate", text_,
                  "Guess tokens and check them together: ngram (what followed before) or draft:FILE (a "
                  "smaller model with the same vocabulary); the answer stays the same")
      ->type_name("ngram|draft:FILE")
      ->take_last();
}

Speculation SpeculationOptions::kind() const {
  if (text_.empty()) return Speculation::kNone;
  if (text_ == "ngram") return Speculation::kNgram;
  if (text_.starts_with(kDraft) && text_.size() > kDraft.size()) return Speculation::kDraftModel;
  throw Error(ErrorKind::kInvalidArgument,
              fmt::format("--speculate: \"{}\" is neither ngram nor draft:FILE", text_));
}

std::optional<LanguageModel> SpeculationOptions::load_draft(const ModelOptions& model,
                                                            Executor& executor) const {
  if (kind() != Speculation::kDraftModel) return std::nullopt;
  return model.load(text_.substr(kDraft.size()), executor);
}

void print(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    throw Error(ErrorKind::kIo, fmt::format("standard output: {}", std::strerror(errno)));
  }
}

std::string in_quotes(std::string_view text) {
  JsonWriter json;
  json.value(text);
  return json.text();
}

void write_ids(JsonWriter& json, std::span<const TokenId> ids) {
  json.begin_array();
  for (const TokenId id : ids) json.value(id);
  json.end_array();
}

void note(const std::string& line) { fmt::print(stderr, "{}\n", line); }

bool stdout_is_terminal() { return isatty(STDOUT_FILENO) == 1; }

void ProgressLine::show(const std::string& text) {
  if (isatty(STDERR_FILENO) != 1 || text == shown_) return;
  shown_ = text;
  fmt::print(stderr, "\r\033[K{}", text);
}

}  // namespace kvasir::cli
