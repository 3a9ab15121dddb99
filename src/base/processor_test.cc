#include "base/processor.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace kvasir {
namespace {

TEST(Processor, HasANameWithoutBlanksAroundIt) {
  const std::string name = processor_name();
  ASSERT_FALSE(name.empty());
  EXPECT_NE(name.front(), ' ');
  EXPECT_NE(name.back(), ' ');
  EXPECT_EQ(name.find('\0'), std::string::npos);
}

#if defined(__x86_64__)
TEST(Processor, HasTheFeaturesThatTheCompilersRuntimeFinds) {
  const std::vector<std::string> features = processor_features();
  const auto has = [&](const char* name) {
    return std::find(features.begin(), features.end(), name) != features.end();
  };
  EXPECT_EQ(has("fma"), __builtin_cpu_supports("fma") != 0);
  EXPECT_EQ(has("avx2"), __builtin_cpu_supports("avx2") != 0);
  EXPECT_EQ(has("avx512f"), __builtin_cpu_supports("avx512f") != 0);
  EXPECT_EQ(has("avx512dq"), __builtin_cpu_supports("avx512dq") != 0);
  EXPECT_EQ(has("avx512bw"), __builtin_cpu_supports("avx512bw") != 0);
  EXPECT_EQ(has("avx512vl"), __builtin_cpu_supports("avx512vl") != 0);
  EXPECT_EQ(has("avx512_vnni"), __builtin_cpu_supports("avx512vnni") != 0);
  EXPECT_EQ(has("avx512_bf16"), __builtin_cpu_supports("avx512bf16") != 0);
}
#endif

}  // namespace
}  // namespace kvasir
