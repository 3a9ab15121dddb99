// kvasir.Model: a model file and what it generates.
#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <string>

#include "bindings.h"
#include "kvasir/error.h"
#include "kvasir/generate.h"
#include "kvasir/language_model.h"
#include "kvasir/sequence_runner.h"
#include "loaded_model.h"

namespace kvasir::python {
namespace {

// Tokens of a prompt that run before Python may handle a signal. Changes no bit of any result.
constexpr std::int64_t kPiece = 256;

std::shared_ptr<LoadedModel> load(const std::string& path, int threads, Activations activations) {
  const nb::gil_scoped_release release;
  return std::make_shared<LoadedModel>(path, threads, activations);
}

nb::typed<nb::dict, nb::str, nb::any> config_of(const LoadedModel& loaded) {
  const Config& config = loaded.model.model().config();
  nb::dict fields;
  fields["vocab_size"] = config.vocab_size;
  fields["max_seq"] = config.max_seq;
  fields["n_layer"] = config.n_layer;
  fields["n_head"] = config.n_head;
  fields["n_kv_head"] = config.n_kv_head;
  fields["head_dim"] = config.head_dim;
  fields["d_model"] = config.d_model;
  fields["d_ff"] = config.d_ff;
  fields["rope_theta"] = config.rope_theta;
  fields["rms_eps"] = config.rms_eps;
  return fields;
}

std::vector<ChatMessage> to_messages(const std::vector<std::pair<std::string, std::string>>& messages) {
  std::vector<ChatMessage> result;
  for (const auto& [role, content] : messages) result.push_back({role, content});
  return result;
}

ControlTokens control(bool parse) { return parse ? ControlTokens::kParse : ControlTokens::kAsText; }

// [tokens][vocab_size]: a piece of the prompt at a time, with a look at the signals in between.
OutputArray<float> logits(LoadedModel& loaded, const std::vector<TokenId>& ids, KvType kv_type,
                          bool use_cache, std::int64_t prefill_chunk) {
  const Config& config = loaded.model.model().config();
  const auto count_all = static_cast<std::int64_t>(ids.size());
  if (count_all == 0) throw Error(ErrorKind::kInvalidArgument, "the prompt has no tokens");
  if (count_all > config.max_seq) {
    throw Error(ErrorKind::kCapacity,
                fmt::format("the prompt has {} tokens, but the context holds {}", count_all, config.max_seq));
  }
  SequenceRunner runner(loaded.model.model(), loaded.executor, 1, count_all, kv_type,
                        {use_cache, prefill_chunk});
  const auto vocab = static_cast<std::size_t>(config.vocab_size);
  const std::size_t piece =
      !use_cache ? ids.size() : static_cast<std::size_t>(prefill_chunk > 0 ? prefill_chunk : kPiece);
  auto all = std::make_unique_for_overwrite<float[]>(ids.size() * vocab);
  {
    const nb::gil_scoped_release release;
    for (std::size_t begin = 0; begin < ids.size(); begin += piece) {
      const std::size_t count = std::min(piece, ids.size() - begin);
      {
        const std::lock_guard lock(loaded.turn);
        const auto rows =
            runner.append(std::span(ids).subspan(begin, count), static_cast<std::int64_t>(count));
        std::copy(rows.begin(), rows.end(), all.get() + begin * vocab);
      }
      check_signals();
    }
  }
  return to_numpy(std::move(all), {ids.size(), vocab});
}

// One generation, with the model that it needs kept alive.
class Stream {
 public:
  Stream(std::shared_ptr<LoadedModel> model, GenerateRequest request)
      : model_(std::move(model)), generation_(model_->model, model_->executor, std::move(request)) {}

  // (id, text, logprob, [(id, logprob), ...]), or None when it is over.
  nb::object next() {
    while (prefill()) check_signals();
    std::optional<GeneratedToken> drawn;
    Logprobs logprobs{};
    {
      const Computing computing(*model_);
      if (const GeneratedToken* token = generation_.next()) {
        drawn = *token;
        if (token->logprobs != nullptr) logprobs = *token->logprobs;
      }
    }
    if (!drawn.has_value()) return nb::none();
    const GeneratedToken& token = *drawn;
    if (token.logprobs == nullptr) return nb::make_tuple(token.id, token.text, nb::none(), nb::none());
    return nb::make_tuple(token.id, token.text, logprobs.chosen, logprobs.top);
  }

  void cancel() {
    const Computing computing(*model_);
    generation_.cancel();
  }

  // A copy of part of the result: another thread may be generating.
  template <class Part>
  auto result(Part part) {
    const Computing computing(*model_);
    return part(generation_.result());
  }

  std::optional<std::string> finish_reason() {
    const Computing computing(*model_);
    if (!generation_.over()) return std::nullopt;
    return std::string(finish_reason_name(generation_.result().finish_reason));
  }

 private:
  bool prefill() {
    const Computing computing(*model_);
    return generation_.prefill();
  }

  std::shared_ptr<LoadedModel> model_;
  Generation generation_;
};

void bind_request(nb::module_& module) {
  nb::class_<SamplingParams>(module, "SamplingParams")
      .def(nb::init<>())
      .def_rw("temperature", &SamplingParams::temperature)
      .def_rw("top_k", &SamplingParams::top_k)
      .def_rw("top_p", &SamplingParams::top_p)
      .def_rw("min_p", &SamplingParams::min_p)
      .def_rw("repetition_penalty", &SamplingParams::repetition_penalty)
      .def_rw("presence_penalty", &SamplingParams::presence_penalty)
      .def_rw("frequency_penalty", &SamplingParams::frequency_penalty)
      .def_rw("logit_bias", &SamplingParams::logit_bias)
      .def_rw("seed", &SamplingParams::seed);
  nb::class_<CompletionRequest>(module, "CompletionRequest")
      .def_rw("prompt", &CompletionRequest::prompt)
      .def_rw("sampling", &CompletionRequest::sampling)
      .def_rw("max_tokens", &CompletionRequest::max_tokens, nb::arg().none())
      .def_rw("stop", &CompletionRequest::stop)
      .def_rw("ignore_eos", &CompletionRequest::ignore_eos)
      .def_rw("logprobs", &CompletionRequest::logprobs, nb::arg().none());
  nb::class_<GenerateRequest, CompletionRequest>(module, "GenerateRequest")
      .def(nb::init<>())
      .def_rw("kv_type", &GenerateRequest::kv_type)
      .def_prop_rw(
          "use_cache", [](const GenerateRequest& request) { return request.run.use_cache; },
          [](GenerateRequest& request, bool use_cache) { request.run.use_cache = use_cache; })
      .def_prop_rw(
          "prefill_chunk", [](const GenerateRequest& request) { return request.run.prefill_chunk; },
          [](GenerateRequest& request, std::int64_t tokens) { request.run.prefill_chunk = tokens; });
}

void bind_stream(nb::module_& module) {
  const auto part = [](auto get) { return [get](Stream& stream) { return stream.result(get); }; };
  nb::class_<Stream>(module, "Stream")
      .def("__init__",
           [](Stream* self, std::shared_ptr<LoadedModel> model, GenerateRequest request) {
             if (request.run.prefill_chunk == 0) request.run.prefill_chunk = kPiece;
             new (self) Stream(std::move(model), std::move(request));
           })
      .def("next", &Stream::next)
      .def("cancel", &Stream::cancel)
      .def_prop_ro("text", part([](const GenerateResult& result) { return result.text; }))
      .def_prop_ro("tokens", part([](const GenerateResult& result) { return result.tokens; }))
      .def_prop_ro("finish_reason", &Stream::finish_reason)
      .def_prop_ro("stop_reason", part([](const GenerateResult& result) { return result.stop_reason; }))
      .def_prop_ro("prefill_seconds",
                   part([](const GenerateResult& result) { return result.prefill_seconds; }))
      .def_prop_ro("decode_seconds",
                   part([](const GenerateResult& result) { return result.decode_seconds; }));
}

}  // namespace

void bind_model(nb::module_& module) {
  nb::enum_<Activations>(module, "Activations")
      .value("default", Activations::kDefault)
      .value("f32", Activations::kF32);
  module.def("default_kv_type", &default_kv_type, nb::arg("activations"));
  nb::class_<LoadedModel>(module, "LoadedModel")
      .def_static("load", &load, nb::arg("path"), nb::arg("threads"), nb::arg("activations"))
      .def("logits", &logits, nb::arg("ids"), nb::arg("kv_type"), nb::arg("use_cache"),
           nb::arg("prefill_chunk"))
      .def("encode_prompt",
           [](const LoadedModel& loaded, const std::string& text) {
             return loaded.model.encode_prompt(text, ControlTokens::kAsText);
           })
      .def("tokenize",
           [](const LoadedModel& loaded, const std::string& text, bool parse_control) {
             return loaded.model.tokenizer().encode(text, control(parse_control));
           })
      .def("detokenize", [](const LoadedModel& loaded, const std::vector<TokenId>& ids,
                            bool skip_control) { return loaded.model.tokenizer().decode(ids, skip_control); })
      .def("chat_ids",
           [](const LoadedModel& loaded, const std::vector<std::pair<std::string, std::string>>& messages,
              bool add_generation_prompt) {
             return loaded.model.chat_template().encode(loaded.model.tokenizer(), to_messages(messages),
                                                        add_generation_prompt);
           })
      .def("chat_text",
           [](const LoadedModel& loaded, const std::vector<std::pair<std::string, std::string>>& messages,
              bool add_generation_prompt) {
             return loaded.model.chat_template().render_text(to_messages(messages), add_generation_prompt);
           })
      .def(
          "fingerprint",
          [](const LoadedModel& loaded, KvType kv_type) { return loaded.model.fingerprint(kv_type); },
          nb::call_guard<nb::gil_scoped_release>())
      .def_prop_ro("config", &config_of)
      .def_prop_ro("path", [](const LoadedModel& loaded) { return loaded.model.path(); })
      .def_prop_ro("threads", [](const LoadedModel& loaded) { return loaded.executor.threads(); })
      .def_prop_ro("weight_bytes",
                   [](const LoadedModel& loaded) { return loaded.model.model().weight_bytes(); })
      .def_prop_ro("bos", [](const LoadedModel& loaded) { return loaded.model.tokenizer().data().bos; })
      .def_prop_ro("eos", [](const LoadedModel& loaded) { return loaded.model.tokenizer().data().eos; });
  bind_request(module);
  bind_stream(module);
}

}  // namespace kvasir::python
