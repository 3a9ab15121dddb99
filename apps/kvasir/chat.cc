// kvasir chat: a conversation, with the model's own chat template.
#include "kvasir/chat.h"

#include <editline/readline.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>
#include <memory>

#include "command.h"
#include "interrupt.h"
#include "kvasir/error.h"
#include "kvasir/generate.h"

namespace kvasir::cli {
namespace {

struct Options {
  ModelOptions model;
  RunCliOptions run;
  SamplingOptions sampling;
  std::string system;
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
  Conversation(const std::string& system, GenerateRequest request, const LanguageModel& model,
               Executor& executor)
      : system_(system),
        request_(std::move(request)),
        model_(model),
        executor_(executor),
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
    const GenerateResult result = generate(model_, executor_, request_, [&](const GeneratedToken& token) {
      print(token.text);
      return !interrupt.raised();
    });
    print("\n");
    messages.push_back({"assistant", result.text});
    messages_ = std::move(messages);
  }

 private:
  const std::string& system_;
  GenerateRequest request_;
  const LanguageModel& model_;
  Executor& executor_;
  const ChatTemplate& chat_template_;
  std::vector<ChatMessage> messages_;
};

int run(const Options& options) {
  GenerateRequest request = options.sampling.request(options.run, options.model.kv_type());
  Executor executor(options.model.threads);
  const LanguageModel model = options.model.load(executor);
  Conversation conversation(options.system, std::move(request), model, executor);
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
  command.add_option("--system", options->system, "System message (default: the template's own)");
  command.callback([options, &chosen] { chosen = [options] { return run(*options); }; });
}

}  // namespace kvasir::cli
