// kvasir perplexity: how well the model predicts a text.
#include "kvasir/perplexity.h"

#include <fmt/format.h>

#include <cmath>
#include <memory>

#include "base/json_writer.h"
#include "command.h"
#include "kvasir/error.h"

namespace kvasir::cli {
namespace {

struct Options {
  ModelOptions model;
  RunCliOptions run;
  PromptOptions prompt;
  std::int64_t window = 0;
  bool json = false;
};

int run(const Options& options) {
  Executor executor(options.model.threads);
  const LanguageModel model = options.model.load(executor);
  const std::vector<TokenId> ids = options.prompt.encode(model);
  const PerplexityResult result =
      perplexity(model.model(), executor, ids, {options.window, options.run.get(), options.model.kv_type()});
  if (options.json) {
    JsonWriter json;
    json.begin_object()
        .field("model", model.path())
        .field("fingerprint", model.fingerprint(options.model.kv_type()));
    json.field("tokens", ids.size()).field("predicted", result.predicted).field("window", result.window);
    json.field("mean_nll", result.mean_nll).field("standard_error", result.standard_error);
    json.field("perplexity", std::exp(result.mean_nll));
    print(json.end_object().text() + "\n");
  } else {
    print(
        fmt::format("{} tokens predicted: mean negative log-likelihood {:.6f} +- {:.6f}, perplexity {:.4f} "
                    "({:.4f} to {:.4f})\n",
                    result.predicted, result.mean_nll, result.standard_error, std::exp(result.mean_nll),
                    std::exp(result.mean_nll - result.standard_error),
                    std::exp(result.mean_nll + result.standard_error)));
  }
  return kDone;
}

}  // namespace

void add_perplexity(CLI::App& program, Action& chosen) {
  CLI::App& command = *program.add_subcommand("perplexity", "Mean negative log-likelihood of a text");
  const auto options = std::make_shared<Options>();
  options->prompt.add(command, true);
  options->model.add(command);
  options->run.add(command);
  add_number(
      command, "--window", options->window,
      "Longer texts are cut into windows of so many tokens, each read from its start; 0 is the context");
  command.add_flag("--json", options->json, "One JSON document");
  command.callback([options, &chosen] { chosen = [options] { return run(*options); }; });
}

}  // namespace kvasir::cli
