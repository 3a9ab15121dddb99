#include "kvasir/observer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "kvasir/lab.h"

namespace kvasir {
namespace {

struct Seen {
  Operation operation;
  std::int32_t layer;
  std::int64_t rows;
  std::vector<float> values;
  std::int64_t width() const { return static_cast<std::int64_t>(values.size()) / rows; }
};

class Recorder : public ForwardObserver {
 public:
  void computed(Operation operation, std::int32_t layer, std::int64_t rows, const float* values,
                std::int64_t width) override {
    seen.push_back({operation, layer, rows, {values, values + rows * width}});
  }
  std::vector<Seen> seen;
};

class Observer : public ::testing::Test {
 protected:
  Observer() : model_(config_, 3) { executor_.set_observer(&recorder_); }

  void forward() {
    KvCache cache(config_, 1);
    model_.model().forward(std::vector<kvasir::Run>{{0, ids_, 0, 2}}, cache, executor_, logits_);
  }

  Config config_;
  const std::vector<TokenId> ids_ = {1, 2, 3, 4, 5};
  TinyLM model_;
  Executor executor_{2, kernels::reference_kernels()};
  Recorder recorder_;
  std::vector<float> logits_;
};

TEST_F(Observer, SeesEveryOperationInOrder) {
  forward();
  std::vector<std::string> order;
  for (const Seen& seen : recorder_.seen) {
    order.push_back(std::to_string(seen.layer) + " " + to_string(seen.operation) + " " +
                    std::to_string(seen.rows) + "x" + std::to_string(seen.width()));
  }
  std::vector<std::string> expected = {"-1 embedding 5x64"};
  for (const std::string layer : {"0 ", "1 "}) {
    for (const char* operation :
         {"attention norm 5x64", "query 5x64", "key 5x32", "value 5x32", "attention 5x64",
          "attention output projection 5x64", "residual after attention 5x64", "ffn norm 5x64",
          "ffn activation 5x176", "ffn down projection 5x64", "residual after ffn 5x64"}) {
      expected.push_back(layer + operation);
    }
  }
  expected.insert(expected.end(), {"-1 final norm 2x64", "-1 logits 2x128"});
  EXPECT_EQ(order, expected);
}

TEST_F(Observer, SeesTheNumbersThatTheNextOperationTakes) {
  forward();
  const auto values = [&](std::int32_t layer, Operation operation) -> const std::vector<float>& {
    return std::find_if(recorder_.seen.begin(), recorder_.seen.end(),
                        [&](const Seen& seen) { return seen.layer == layer && seen.operation == operation; })
        ->values;
  };
  EXPECT_EQ(values(-1, Operation::kLogits), logits_);
  const auto sum = [](const std::vector<float>& a, const std::vector<float>& b) {
    std::vector<float> result(a.size());
    std::transform(a.begin(), a.end(), b.begin(), result.begin(), std::plus<>());
    return result;
  };
  const auto& embedding = values(-1, Operation::kEmbedding);
  const auto& after_attention = values(0, Operation::kAttentionResidual);
  EXPECT_EQ(after_attention, sum(embedding, values(0, Operation::kAttentionOutput)));
  EXPECT_EQ(values(0, Operation::kFfnResidual), sum(after_attention, values(0, Operation::kFfnDown)));
  // Keys after RoPE are what the cache holds.
  KvCache cache(config_, 1);
  model_.model().forward(std::vector<kvasir::Run>{{0, ids_, 0, 0}}, cache, executor_, logits_);
  const std::vector<float> cached = cache.read(1, 5).keys;  // [n_kv_head][5][head_dim]
  const auto& key = values(1, Operation::kKey);             // [5][n_kv_head][head_dim]
  for (std::size_t p = 0; p < 5; ++p) {
    for (std::size_t head = 0; head < 2; ++head) {
      for (std::size_t d = 0; d < 16; ++d)
        EXPECT_EQ(key[p * 32 + head * 16 + d], cached[(head * 5 + p) * 16 + d]);
    }
  }
}

TEST_F(Observer, ChangesNothingAndCanBeTakenAway) {
  forward();
  const std::vector<float> observed = logits_;
  const std::size_t count = recorder_.seen.size();
  executor_.set_observer(nullptr);
  forward();
  EXPECT_EQ(logits_, observed);
  EXPECT_EQ(recorder_.seen.size(), count);
}

}  // namespace
}  // namespace kvasir
