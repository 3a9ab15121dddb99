// The command line: reads options, runs one command, turns errors into one line and an exit status.
#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <exception>
#include <sstream>
#include <string>

#include "command.h"
#include "kvasir/error.h"
#include "kvasir/version.h"

namespace kvasir::cli {
namespace {

// An error is one line, even if it quotes an argument or a file's name that has several.
int fail(std::string message, int status) {
  std::replace_if(
      message.begin(), message.end(), [](unsigned char c) { return c < 0x20; }, ' ');
  note("kvasir: error: " + message);
  return status;
}

int fail_usage(const std::string& message) {
  return fail(message + " (kvasir --help shows what there is)", kWrongUsage);
}

int run(int argc, char** argv) {
  CLI::App program("Kvasir: LLM inference with the same bits on every path.", "kvasir");
  program.set_version_flag(
      "--version", fmt::format("kvasir {} (arithmetic {})", build_info().version, kArithmeticVersion));
  Action action;
  add_generate(program, action);
  add_chat(program, action);
  add_tokenize(program, action);
  add_logits(program, action);
  add_perplexity(program, action);
  add_inspect(program, action);
  add_bench(program, action);
  add_verify(program, action);
  add_trace(program, action);
  add_study(program, action);
  try {
    program.parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help, --version
    std::ostringstream text;
    program.exit(success, text, text);
    print(text.str());
    return kDone;
  } catch (const CLI::ParseError& error) {
    const std::vector<std::string> unknown = program.remaining();
    if (!action && !unknown.empty())
      return fail_usage(fmt::format("there is no command {}", unknown.front()));
    return fail_usage(error.what());
  }
  return action ? action() : fail_usage("no command was given");
}

int run_guarded(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const Error& error) {
    return fail(error.what(), error.kind() == ErrorKind::kInvalidArgument ? kWrongUsage : kFailed);
  } catch (const std::bad_alloc&) {
    return fail("out of memory", kFailed);
  } catch (const std::exception& error) {
    return fail(error.what(), kFailed);
  }
}

}  // namespace
}  // namespace kvasir::cli

int main(int argc, char** argv) {
  std::signal(SIGPIPE, SIG_IGN);  // a closed pipe is an error of print(), not a silent death
  return kvasir::cli::run_guarded(argc, argv);
}
