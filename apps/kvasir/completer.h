// One answer after another, as generate and chat need them.
#ifndef KVASIR_APPS_COMPLETER_H_
#define KVASIR_APPS_COMPLETER_H_

#include <cstdint>
#include <memory>
#include <string>

#include "kvasir/engine.h"
#include "kvasir/generate.h"
#include "kvasir/language_model.h"

namespace kvasir::cli {

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
