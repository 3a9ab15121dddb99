// kvasir tokenize, kvasir detokenize: between texts and token ids.
#include <fmt/format.h>

#include <memory>

#include "base/json_writer.h"
#include "command.h"
#include "formats/gguf.h"
#include "kvasir/tokenizer.h"

namespace kvasir::cli {
namespace {

struct Options {
  ModelOptions model;
  PromptOptions prompt;
  bool ids_only = false;
  bool json = false;
};

Tokenizer open_tokenizer(const std::string& path) {
  return Tokenizer(tokenizer_data_from_gguf(GgufFile::open(path)));
}

int tokenize(const Options& options) {
  const std::string path = options.model.resolved_path();
  const Tokenizer tokenizer = open_tokenizer(path);
  const std::vector<TokenId> ids = tokenizer.encode(options.prompt.read_text(), options.prompt.control());
  if (options.json) {
    JsonWriter json;
    json.begin_object().field("model", path).field("n_tokens", ids.size());
    write_ids(json.key("ids"), ids);
    json.key("pieces").begin_array();
    for (const TokenId id : ids) json.value(tokenizer.token_bytes(id));
    print(json.end_array().end_object().text() + "\n");
    return kDone;
  }
  if (options.ids_only) {
    print(fmt::format("{}\n", fmt::join(ids, ",")));
    return kDone;
  }
  std::string lines;
  for (const TokenId id : ids) {
    lines += fmt::format("{:>7}  {}\n", id, in_quotes(tokenizer.token_bytes(id)));
  }
  print(lines);
  note(fmt::format("{} tokens", ids.size()));
  return kDone;
}

struct DetokenizeOptions {
  ModelOptions model;
  std::vector<std::string> ids;
  bool skip_control = false;
  bool json = false;
};

int detokenize(const DetokenizeOptions& options) {
  const Tokenizer tokenizer = open_tokenizer(options.model.resolved_path());
  PromptOptions input;
  if (!options.ids.empty()) input.text = fmt::format("{}", fmt::join(options.ids, " "));
  const std::vector<TokenId> ids = parse_ids(input.read_text());
  const std::string text = tokenizer.decode(ids, options.skip_control);
  if (!options.json) {
    print(stdout_is_terminal() ? text + "\n" : text);  // exactly the text where a program reads it
    return kDone;
  }
  std::string hex;
  for (const char byte : tokenizer.decode_bytes(ids, options.skip_control)) {
    hex += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  }
  JsonWriter json;
  json.begin_object().field("n_tokens", ids.size()).field("text", text).field("bytes_hex", hex);
  print(json.end_object().text() + "\n");
  return kDone;
}

}  // namespace

void add_tokenize(CLI::App& program, Action& chosen) {
  CLI::App& command = *program.add_subcommand("tokenize", "Show the tokens of a text");
  const auto options = std::make_shared<Options>();
  options->prompt.add(command, false);
  options->model.add_path(command);
  command.add_flag("--ids", options->ids_only, "The ids alone, on one line, separated by commas");
  command.add_flag("--json", options->json, "One JSON document: ids and pieces");
  command.callback([options, &chosen] { chosen = [options] { return tokenize(*options); }; });

  CLI::App& reverse = *program.add_subcommand("detokenize", "Show the text of token ids");
  const auto reverse_options = std::make_shared<DetokenizeOptions>();
  reverse.add_option("ids", reverse_options->ids,
                     "Token ids, separated by commas or spaces (default: standard input)");
  reverse_options->model.add_path(reverse);
  reverse.add_flag("--skip-control", reverse_options->skip_control, "Leave control tokens out");
  reverse.add_flag("--json", reverse_options->json, "One JSON document: text and bytes");
  reverse.callback(
      [reverse_options, &chosen] { chosen = [reverse_options] { return detokenize(*reverse_options); }; });
}

}  // namespace kvasir::cli
