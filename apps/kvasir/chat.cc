// kvasir chat: a conversation, with the model's own chat template.
#include "kvasir/chat.h"

#include <editline/readline.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <memory>

#include "command.h"
#include "completer.h"
#include "interrupt.h"
#include "kvasir/error.h"
#include "kvasir/generate.h"

namespace kvasir::cli {
namespace {

struct Options {
  ModelOptions model;
  RunCliOptions run;
  SamplingOptions sampling;
  SpeculationOptions speculation;
  std::string system;
  bool stats = false;
};

// One line from the user, edited on a terminal; nullopt at the end of the input.
std::optional<std::string> read_line() {
  if (isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1) {
    const std::unique_ptr<char, decltype(&std::free)> line(readline("> "), &std::free);
    if (line == nullptr) return std::nullopt;
    if (*line != '\0') add_history(line.get());
    return std::string(line.get());
  }
  std::string line;
  if (!std::getline(std::cin, line)) return std::nullopt;
  return line;
}

class Conversation {
 public:
  Conversation(const Options& options, GenerateRequest request, const LanguageModel& model,
               Completer& completer)
      : system_(options.system),
        stats_(options.stats),
        request_(std::move(request)),
        model_(model),
        completer_(completer),
        chat_template_(model.chat_template()) {
    reset();
  }

  void reset() {
    messages_.clear();
    if (!system_.empty()) messages_.push_back({"system", system_});
  }

  // Streams the answer. A turn that fails leaves the conversation as it was.
  void say(const std::string& text) {
    std::vector<ChatMessage> messages = messages_;
    messages.push_back({"user", text});
    request_.prompt = chat_template_.encode(model_.tokenizer(), messages, true);
    const InterruptFlag interrupt;
    const ChoiceResult result = completer_.complete(request_, [&](const GeneratedToken& token) {
      print(token.text);
      return !interrupt.raised();
    });
    print("\n");
    if (stats_) note(summary(request_, result));
    messages.push_back({"assistant", result.text});
    messages_ = std::move(messages);
  }

 private:
  const std::string& system_;
  bool stats_;
  GenerateRequest request_;
  const LanguageModel& model_;
  Completer& completer_;
  const ChatTemplate& chat_template_;
  std::vector<ChatMessage> messages_;
};

int run(const Options& options) {
  GenerateRequest request = options.sampling.request(options.run, options.model.kv_type());
  const Speculation speculation = options.speculation.kind();
  Executor executor(options.model.threads);
  const LanguageModel model = options.model.load(executor);
  const std::optional<LanguageModel> draft = options.speculation.load_draft(options.model, executor);
  const std::int64_t most = model.model().config().max_seq;
  Completer completer(model, draft ? &*draft : nullptr, executor, request, speculation,
                      request.context == 0 ? most : std::clamp<std::int64_t>(request.context, 1, most));
  Conversation conversation(options, std::move(request), model, completer);
  if (isatty(STDIN_FILENO) == 1) note("Ctrl-C stops an answer, /reset starts anew, /exit or Ctrl-D ends.");
  while (const std::optional<std::string> line = read_line()) {
    if (*line == "/exit") break;
    if (*line == "/reset") {
      conversation.reset();
    } else if (!line->empty()) {
      try {
        conversation.say(*line);
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::kCapacity || isatty(STDIN_FILENO) != 1) throw;
        note(fmt::format("kvasir: {}; /reset starts anew", error.what()));
      }
    }
  }
  return kDone;
}

}  // namespace

void add_chat(CLI::App& program, Action& chosen) {
  CLI::App& command = *program.add_subcommand("chat", "Talk with the model; each line of input is a turn");
  const auto options = std::make_shared<Options>();
  options->model.add(command);
  options->sampling.add(command);
  options->run.add(command);
  options->speculation.add(command);
  command.add_flag("--stats", options->stats, "Speed of each answer, on standard error");
  command.add_option("--system", options->system, "System message (default: the template's own)");
  command.callback([options, &chosen] { chosen = [options] { return run(*options); }; });
}

}  // namespace kvasir::cli
