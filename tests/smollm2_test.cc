// A real model, SmolLM2-135M-Instruct in Q4_1, against an independent implementation (tests/data/smollm2).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/sha256.h"
#include "formats/gguf.h"
#include "golden_files.h"
#include "kernels/dequantize.h"
#include "kvasir/error.h"
#include "kvasir/generate.h"
#include "kvasir/language_model.h"
#include "kvasir/perplexity.h"
#include "kvasir/sampling.h"
#include "kvasir/sequence_runner.h"

namespace kvasir {
namespace {

using testing::data_path;
using testing::default_model_path;
using testing::read_ids;
using testing::tensor_values;

// The golden logits are float64 runs; float32 runs of the same implementation differ from them by up
// to 1.1e-4.
constexpr double kLogitTolerance = 2e-4;

struct Prompt {
  std::string name;
  std::vector<TokenId> ids, top_ids, greedy;
  std::vector<double> top_logits;
};

class SmolLm2 : public ::testing::Test {
 protected:
  // Loaded once for all tests of a process.
  static const LanguageModel& model(Activations activations) {
    static std::unique_ptr<LanguageModel> models[2];
    auto& slot = models[activations == Activations::kF32 ? 1 : 0];
    if (slot == nullptr) {
      slot =
          std::make_unique<LanguageModel>(LanguageModel::load(default_model_path(), activations, executor()));
    }
    return *slot;
  }

  static Executor& executor() {
    static Executor instance;
    return instance;
  }

  static simdjson::dom::element golden() {
    static simdjson::dom::parser parser;
    static const simdjson::dom::element root = parser.load(data_path("smollm2/golden.json"));
    return root;
  }

  static std::vector<Prompt> prompts() {
    std::vector<Prompt> prompts;
    for (const simdjson::dom::element item : golden()["prompts"].get_array()) {
      Prompt prompt{std::string(item["name"].get_string().value()),
                    read_ids(item["ids"]),
                    read_ids(item["last_top20_ids"]),
                    read_ids(item["greedy64"]),
                    {}};
      for (const simdjson::dom::element logit : item["last_top20_logits"].get_array()) {
        prompt.top_logits.push_back(logit.get_double());
      }
      prompts.push_back(std::move(prompt));
    }
    EXPECT_EQ(prompts.size(), 12U);
    return prompts;
  }

  static std::vector<TokenId> text_ids() { return read_ids(golden()["perplexity"].at(0)["ids"]); }

  static std::size_t vocab() {
    return static_cast<std::size_t>(model(Activations::kF32).model().config().vocab_size);
  }

  // Logits of every position, [tokens][vocab].
  static std::vector<float> all_logits(Activations activations, KvType kv_type, std::span<const TokenId> ids,
                                       RunOptions options = {}) {
    const auto n = static_cast<std::int64_t>(ids.size());
    SequenceRunner runner(model(activations).model(), executor(), 1, n, kv_type, options);
    const auto logits = runner.append(ids, n);
    return {logits.begin(), logits.end()};
  }
};

TEST_F(SmolLm2, StoredWeightsAreDequantizedAsElsewhere) {
  const GgufFile file = GgufFile::open(default_model_path());
  std::size_t checked = 0;
  for (const simdjson::dom::element item : golden()["weights_gguf"].get_array()) {
    const std::string name(item["gguf_name"].get_string().value());
    const GgufTensor& tensor = file.tensor(name);
    EXPECT_EQ(tensor_type_info(tensor.type).name, item["type"].get_string().value());
    const std::uint64_t columns = tensor.shape.back();
    std::vector<float> values(tensor.shape.front() * (tensor.shape.size() == 2 ? columns : 1));
    kernels::dequantize(tensor.type, tensor.data.data(), values);
    const auto expect_at = [&](const char* key, std::size_t begin) {
      std::size_t at = begin;
      for (const simdjson::dom::element value : item[key].get_array()) {
        // The golden values are printed with nine digits.
        EXPECT_FLOAT_EQ(values[at++], static_cast<float>(value.get_double().value())) << name;
        ++checked;
      }
    };
    expect_at("first8", 0);
    expect_at("row1_first4", columns);
    const double sum = std::accumulate(values.begin(), values.end(), 0.0);
    EXPECT_NEAR(sum, item["sum"].get_double().value(), 1e-5 * std::max(1.0, std::fabs(sum))) << name;
  }
  EXPECT_GE(checked, 40U);
}

TEST_F(SmolLm2, LogitsOfEveryPositionAreThoseOfFloat64) {
  const SafetensorsFile file = SafetensorsFile::open(data_path("smollm2/logits_top50.safetensors"));
  for (const Prompt& prompt : prompts()) {
    const auto logits = all_logits(Activations::kF32, KvType::kF32, prompt.ids);
    const auto ids = tensor_values<std::int32_t>(file, prompt.name + ".top50_ids");
    const auto expected = tensor_values<float>(file, prompt.name + ".top50_logits_f32");
    const auto sums = tensor_values<double>(file, prompt.name + ".logsumexp_f64");
    ASSERT_EQ(sums.size(), prompt.ids.size());
    for (std::size_t t = 0; t < prompt.ids.size(); ++t) {
      const std::span<const float> row(logits.data() + t * vocab(), vocab());
      for (std::size_t i = 0; i < 50; ++i) {
        ASSERT_NEAR(row[static_cast<std::size_t>(ids[t * 50 + i])], expected[t * 50 + i], kLogitTolerance)
            << prompt.name << " position " << t;
      }
      ASSERT_NEAR(log_sum_exp(row), sums[t], kLogitTolerance);
    }
    const std::span<const float> last(logits.data() + (prompt.ids.size() - 1) * vocab(), vocab());
    const Logprobs top = logprobs_of(last, 0, 20);
    for (std::size_t i = 0; i < 20; ++i) {
      EXPECT_EQ(top.top[i].first, prompt.top_ids[i]) << prompt.name;
      EXPECT_NEAR(last[static_cast<std::size_t>(top.top[i].first)], prompt.top_logits[i], kLogitTolerance);
    }
  }
}

TEST_F(SmolLm2, GreedyContinuationsAreEqual) {
  for (const Prompt& prompt : prompts()) {
    GenerateRequest request;
    request.prompt = prompt.ids;
    request.sampling.temperature = 0.0;
    request.max_tokens = static_cast<std::int64_t>(prompt.greedy.size());
    request.ignore_eos = true;
    request.kv_type = KvType::kF32;
    const GenerateResult result = generate(model(Activations::kF32), executor(), request);
    EXPECT_EQ(result.tokens, prompt.greedy) << prompt.name;
    EXPECT_EQ(result.finish_reason, FinishReason::kLength);
  }
}

TEST_F(SmolLm2, PerplexityIsWithinAThousandth) {
  const double expected = golden()["perplexity"].at(0)["ppl_f64"].get_double();
  const PerplexityResult result =
      perplexity(model(Activations::kF32).model(), executor(), text_ids(),
                 {.window = 0, .run = {.prefill_chunk = 256}, .kv_type = KvType::kF32});
  EXPECT_EQ(result.predicted, 1090);
  EXPECT_NEAR(std::exp(result.mean_nll) / expected, 1.0, 1e-3);
  EXPECT_NEAR(result.mean_nll, golden()["perplexity"].at(0)["mean_nll_f64"].get_double().value(), 1e-5);
}

TEST_F(SmolLm2, EightBitActivationsCostLittle) {
  const std::vector<TokenId> ids = text_ids();
  const double exact_nll = golden()["perplexity"].at(0)["mean_nll_f64"].get_double();
  const PerplexityResult result = perplexity(model(Activations::kDefault).model(), executor(), ids,
                                             {.window = 0, .run = {.prefill_chunk = 256}});
  EXPECT_NEAR(result.mean_nll, exact_nll, 0.02);

  // Mean Kullback-Leibler divergence from the float reference (which the test above holds to the golden
  // values).
  double total = 0.0;
  const auto chunk = static_cast<std::int64_t>(100);
  const auto n = static_cast<std::int64_t>(ids.size());
  SequenceRunner exact(model(Activations::kF32).model(), executor(), 1, n, KvType::kF32, {});
  SequenceRunner ours(model(Activations::kDefault).model(), executor(), 1, n, KvType::kF16, {});
  for (std::int64_t begin = 0; begin < n; begin += chunk) {
    const std::int64_t count = std::min(chunk, n - begin);
    const auto part =
        std::span(ids).subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(count));
    const auto p_rows = exact.append(part, count), q_rows = ours.append(part, count);
    for (std::size_t at = 0; at < p_rows.size(); at += vocab()) {
      const auto p = p_rows.subspan(at, vocab()), q = q_rows.subspan(at, vocab());
      const double p_sum = log_sum_exp(p), q_sum = log_sum_exp(q);
      for (std::size_t i = 0; i < vocab(); ++i) {
        const double log_p = p[i] - p_sum, log_q = q[i] - q_sum;
        total += std::exp(log_p) * (log_p - log_q);
      }
    }
  }
  const double mean_kl = total / static_cast<double>(n);
  EXPECT_LT(mean_kl, 0.004);
  EXPECT_GT(mean_kl, 1e-4);  // it is not the float path
  RecordProperty("mean_kl", std::to_string(mean_kl));
}

// Field case: prefill chunk, batch size or thread count changes the logits.
TEST_F(SmolLm2, SameBitsForEveryChunkAndThreadCount) {
  const std::vector<TokenId> text = text_ids();
  const std::span<const TokenId> ids = std::span(text).first(130);
  const auto digest = [](std::span<const float> logits) {
    Sha256 hash;
    hash.update(std::as_bytes(logits));
    return hash.hex_digest();
  };
  // The slow path: each position from its own run from position 0, on one thread.
  const Model& model_ = model(Activations::kDefault).model();
  Executor one_thread(1);
  SequenceRunner slow(model_, one_thread, 1, 130, KvType::kF16, {.use_cache = false});
  std::vector<float> expected;
  for (const TokenId& id : ids) {
    const auto row = slow.append({&id, 1});
    expected.insert(expected.end(), row.begin(), row.end());
  }
  for (const float value : expected) ASSERT_TRUE(std::isfinite(value));
  ASSERT_GT(*std::max_element(expected.begin(), expected.end()) -
                *std::min_element(expected.begin(), expected.end()),
            10.0F);

  const auto check = [&](std::size_t length, std::int64_t chunk, Executor& executor) {
    SequenceRunner runner(model_, executor, 1, 130, KvType::kF16, {.prefill_chunk = chunk});
    const auto logits = runner.append(ids.first(length), static_cast<std::int64_t>(length));
    ASSERT_EQ(digest(logits), digest(std::span(expected).first(length * vocab())))
        << length << " tokens, chunks of " << chunk << ", " << executor.threads() << " threads";
  };
  for (const int threads : {1, 2, 3, 7}) {
    Executor executor(threads);
    for (const std::int64_t chunk : {1, 2, 3, 7, 15, 16, 17, 31, 32, 33, 64, 127, 128, 129, 512}) {
      check(129, chunk, executor);
    }
  }
  Executor two(2);
  for (const std::size_t length : {127U, 128U, 130U}) {
    for (const std::int64_t chunk : {1, 16, 33, 127, 128, 512}) check(length, chunk, two);
  }
  Executor scalar(2, "scalar");
  check(20, 7, scalar);
}

TEST_F(SmolLm2, LimitsOfGeneration) {
  const LanguageModel& language_model = model(Activations::kDefault);
  GenerateRequest request;
  request.sampling.temperature = 0.0;
  request.ignore_eos = true;
  request.context = 64;
  const std::vector<TokenId> text = text_ids();
  const auto run = [&](std::size_t prompt, std::optional<std::int64_t> max_tokens) {
    request.prompt.assign(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(prompt));
    request.max_tokens = max_tokens;
    const GenerateResult result = generate(language_model, executor(), request);
    EXPECT_EQ(result.finish_reason, FinishReason::kLength);
    return result.tokens.size();
  };
  for (const std::int64_t n : {0, 1, 2, 3}) EXPECT_EQ(run(5, n), static_cast<std::size_t>(n));
  EXPECT_EQ(run(63, std::nullopt), 1U);
  EXPECT_EQ(run(60, 10), 4U);
  for (const std::size_t too_long : {std::size_t{64}, std::size_t{1000}}) {
    try {
      run(too_long, 1);
      FAIL() << "a prompt of " << too_long << " was taken";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kCapacity);
      EXPECT_NE(std::string(error.what()).find(std::to_string(too_long)), std::string::npos) << error.what();
      EXPECT_NE(std::string(error.what()).find("64"), std::string::npos) << error.what();
    }
  }
  EXPECT_THROW(run(0, 1), Error);
  EXPECT_THROW(run(5, -1), Error);
  EXPECT_THROW(language_model.encode_prompt("", ControlTokens::kAsText), Error);
}

TEST_F(SmolLm2, TextLogprobsAndStopsOfAGeneration) {
  const LanguageModel& language_model = model(Activations::kDefault);
  GenerateRequest request;
  request.prompt = language_model.encode_prompt("Once upon a time", ControlTokens::kAsText);
  request.sampling.seed = 5;
  request.sampling.temperature = 0.7;
  request.max_tokens = 40;
  request.logprobs = 3;
  std::string streamed;
  const GenerateResult full = generate(language_model, executor(), request, [&](const GeneratedToken& token) {
    streamed += token.text;
    return true;
  });
  EXPECT_EQ(streamed, full.text);
  EXPECT_EQ(full.text, language_model.tokenizer().decode(full.tokens, true));

  // Teacher forcing gives the same logprobs to the bit.
  std::vector<TokenId> whole = request.prompt;
  whole.insert(whole.end(), full.tokens.begin(), full.tokens.end());
  const auto logits = all_logits(Activations::kDefault, KvType::kF16, whole);
  for (std::size_t i = 0; i < full.tokens.size(); ++i) {
    const std::span<const float> row(logits.data() + (request.prompt.size() - 1 + i) * vocab(), vocab());
    ASSERT_EQ(full.logprobs[i].chosen, logprobs_of(row, full.tokens[i], 3).chosen);
    ASSERT_EQ(full.logprobs[i].top, logprobs_of(row, full.tokens[i], 3).top);
  }

  // A stop string out of the middle of the text, over token borders.
  const std::string stop = full.text.substr(full.text.size() / 2, 7);
  request.stop = {stop};
  streamed.clear();
  const GenerateResult stopped =
      generate(language_model, executor(), request, [&](const GeneratedToken& token) {
        streamed += token.text;
        return true;
      });
  EXPECT_EQ(stopped.text, full.text.substr(0, full.text.find(stop)));
  EXPECT_EQ(streamed, stopped.text);
  EXPECT_EQ(stopped.finish_reason, FinishReason::kStop);
  EXPECT_EQ(stopped.stop_reason, stop);
  EXPECT_TRUE(std::equal(stopped.tokens.begin(), stopped.tokens.end(), full.tokens.begin()));

  // Ended by the caller.
  request.stop.clear();
  int calls = 0;
  const GenerateResult cancelled =
      generate(language_model, executor(), request, [&](const GeneratedToken&) { return ++calls < 3; });
  EXPECT_EQ(cancelled.finish_reason, FinishReason::kCancelled);
  EXPECT_EQ(cancelled.tokens.size(), 3U);
}

}  // namespace
}  // namespace kvasir
