// The command line: reads options, runs one command, turns errors into one line and an exit status.
#include <csignal>
#include <exception>
#include <string>

#include "command.h"
#include "kvasir/error.h"

namespace kvasir::cli {
namespace {

int fail(const std::string& message, int status) {
  note("kvasir: error: " + message);
  return status;
}

int run(int argc, char** argv) {
  CLI::App program("Kvasir: LLM inference with the same bits on every path.", "kvasir");
  program.set_version_flag("--version", std::string("kvasir " KVASIR_VERSION " (arithmetic ") +
                                            std::to_string(kArithmeticVersion) + ")");
  program.require_subcommand(1);
  Action action;
  add_generate(program, action);
  add_chat(program, action);
  add_tokenize(program, action);
  add_logits(program, action);
  add_perplexity(program, action);
  add_inspect(program, action);
  try {
    program.parse(argc, argv);
  } catch (const CLI::Success& success) {  // --help, --version
    return program.exit(success);
  } catch (const CLI::ParseError& error) {
    return fail(std::string(error.what()) + " (kvasir --help shows what there is)", kWrongUsage);
  }
  return action();
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
