// A warm decode loop takes no memory from the heap.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <vector>

#include "kvasir/engine.h"
#include "kvasir/kv_cache.h"
#include "kvasir/language_model.h"
#include "toy_model.h"

namespace {
std::atomic<std::int64_t> allocations{0};
}

// Not inlined: the compiler would see malloc meet delete, and warn.
[[gnu::noinline]] void* operator new(std::size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size)) return memory;
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t /*size*/) noexcept { std::free(memory); }

namespace kvasir {
namespace {

LanguageModel load(TensorType type, Executor& executor) {
  testing::ToyFile file = testing::toy_file(type);
  file.numbers["llama.context_length"] = 1024;
  const std::string path = file.write();
  LanguageModel model = LanguageModel::load(path, Activations::kDefault, executor);
  std::remove(path.c_str());
  return model;
}

TEST(Allocations, AWarmForwardPassMakesNone) {
  for (const TensorType type : {TensorType::kQ8_0, TensorType::kBF16, TensorType::kF32}) {
    for (const int threads : {1, 2}) {
      Executor executor(threads);
      const LanguageModel model = load(type, executor);
      KvCache cache(model.model().config(), 3, KvType::kF16);
      std::vector<float> logits;
      const std::vector<TokenId> prompt(700, 5), token(1, 7);  // long enough for spans to be shared out
      for (std::int32_t sequence = 0; sequence < 3; ++sequence) {
        const kvasir::Run run{.sequence = sequence, .tokens = prompt};
        model.model().forward({&run, 1}, cache, executor, logits);
      }
      std::int64_t before = 0;
      for (std::int64_t step = 0; step < 20; ++step) {
        if (step == 4) before = allocations;
        const kvasir::Run runs[] = {{0, token, 700 + step}, {1, token, 700 + step}, {2, token, 700 + step}};
        model.model().forward(runs, cache, executor, logits);
      }
      EXPECT_EQ(allocations, before) << threads << " threads";
    }
  }
}

#ifdef NDEBUG  // otherwise each step counts the cache's blocks again
TEST(Allocations, AWarmEngineMakesNoneBetweenTokens) {
  Executor executor(1);
  const LanguageModel model = load(TensorType::kQ8_0, executor);
  Engine engine(model, executor, {.kv_blocks = 256});
  for (TokenId i = 0; i < 8; ++i) {
    EngineRequest wanted;
    wanted.prompt = {i, 1, 2};
    wanted.max_tokens = 500;
    wanted.ignore_eos = true;
    wanted.sampling.temperature = i % 2 == 0 ? 0.0 : 0.8;
    wanted.sampling.seed = 3;
    engine.submit(wanted);
  }
  std::int64_t before = 0;
  // Warm: beyond the first span of attention.
  for (int step = 0; step < 480; ++step) {
    if (step == 300) before = allocations;
    ASSERT_TRUE(engine.step());
  }
  EXPECT_EQ(allocations, before);
}
#endif

}  // namespace
}  // namespace kvasir
