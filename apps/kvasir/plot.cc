#include "plot.h"

#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "kvasir/error.h"

namespace kvasir::cli {
namespace {

[[noreturn]] void fail(const std::string& message) { throw Error(ErrorKind::kIo, "--plot: " + message); }

std::string interpreter() {
  const char* chosen = std::getenv("KVASIR_PYTHON");
  return chosen == nullptr || *chosen == '\0' ? "python3" : chosen;
}

struct Finished {
  int status;
  std::string output;  // both streams
};

// Starts a program whose both streams go to a pipe, and waits for its end.
Finished run_program(const std::vector<std::string>& words) {
  std::array<int, 2> ends{};
  if (pipe(ends.data()) != 0) fail(std::strerror(errno));
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, ends[1], STDERR_FILENO);
  posix_spawn_file_actions_addclose(&actions, ends[0]);
  posix_spawn_file_actions_addclose(&actions, ends[1]);
  std::vector<char*> arguments;
  arguments.reserve(words.size() + 1);
  for (const std::string& word : words) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  pid_t process = 0;
  const int error = posix_spawnp(&process, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(ends[1]);
  Finished finished{0, ""};
  std::array<char, 4096> part{};
  for (ssize_t got = 0; error == 0 && (got = read(ends[0], part.data(), part.size())) != 0;) {
    if (got > 0) finished.output.append(part.data(), static_cast<std::size_t>(got));
    if (got < 0 && errno != EINTR) break;
  }
  close(ends[0]);
  if (error != 0) fail(fmt::format("{} cannot be run: {}", words.front(), std::strerror(error)));
  while (waitpid(process, &finished.status, 0) < 0 && errno == EINTR) {
  }
  return finished;
}

std::string last_line(std::string text) {
  text.erase(text.find_last_not_of(" \r\n\t") + 1);
  return text.substr(text.find_last_of('\n') + 1);
}

void run_plots(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {interpreter(), "-m", "kvasir.plots"});
  const Finished finished = run_program(arguments);
  if (finished.status == 0) return;
  fail(
      fmt::format("{} -m kvasir.plots failed: {}; it needs the Python package kvasir with matplotlib, and "
                  "KVASIR_PYTHON names the interpreter that has them",
                  interpreter(), last_line(finished.output)));
}

// A file that is gone when the object is.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& content)
      : path_((std::filesystem::temp_directory_path() / "kvasir-study-XXXXXX").string()) {
    const int descriptor = mkstemp(path_.data());
    if (descriptor < 0) fail(fmt::format("{}: {}", path_, std::strerror(errno)));
    close(descriptor);
    std::ofstream out(path_, std::ios::binary);
    out << content << std::flush;
    if (out) return;
    std::filesystem::remove(path_);
    fail(path_ + " cannot be written");
  }
  ~TemporaryFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace

void check_plot(const std::string& file) {
  if (!file.ends_with(".png") && !file.ends_with(".svg")) {
    throw Error(ErrorKind::kInvalidArgument,
                fmt::format("--plot: {} must be a file whose name ends in .png or .svg", file));
  }
  run_plots({"--check"});
}

void draw_plot(const std::string& json, const std::string& file) {
  const TemporaryFile document(json);
  run_plots({document.path(), file});
}

}  // namespace kvasir::cli
