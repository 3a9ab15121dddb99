// One answer after another, as generate and chat need them.
#ifndef KVASIR_APPS_COMPLETER_H_
#define KVASIR_APPS_COMPLETER_H_

#include <CLI/CLI.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "command.h"
#include "kvasir/engine.h"
#include "kvasir/generate.h"
#include "kvasir/language_model.h"

namespace kvasir::cli {

// Whether tokens are guessed, and by what.
class SpeculationOptions {
 public:
  void add(CLI::App& command);
  // Error(kInvalidArgument) for what is neither ngram nor draft:FILE.
  Speculation kind() const;
  // The draft model, if one is wanted.
  std::optional<LanguageModel> load_draft(const ModelOptions& model, Executor& executor) const;

 private:
  std::string text_;
};

// Runs requests on an engine, whose cache keeps what a prompt has in common with those before it; without a
// cache the naive way.
class Completer {
 public:
  // like: how requests are run, all but their prompts. positions: of one prompt and its answer at most. All
  // but `like` must outlive it. Error(kInvalidArgument) for options that exclude each other.
  Completer(const LanguageModel& model, const LanguageModel* draft, Executor& executor,
            const GenerateRequest& like, Speculation speculation, std::int64_t positions);

  // The callback gets each token; if it returns false, the answer ends there. Errors as Generation's.
  ChoiceResult complete(const GenerateRequest& request, const TokenCallback& callback);

 private:
  const LanguageModel& model_;
  Executor& executor_;
  Speculation speculation_;
  std::unique_ptr<Engine> engine_;  // nullptr: the naive way
};

// For people: how many tokens, how fast, and how it ended.
std::string summary(const GenerateRequest& request, const ChoiceResult& result);

double per_second(std::int64_t tokens, double seconds);

}  // namespace kvasir::cli

#endif  // KVASIR_APPS_COMPLETER_H_
