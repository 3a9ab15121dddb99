// Every kernel set of this machine against the definition, bit for bit.
#include "kernels/kernels.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernels/float_functions.h"
#include "kernels/half.h"
#include "kvasir/error.h"

namespace kvasir::kernels {
namespace {

constexpr unsigned kSeed = 20261130;

std::vector<std::uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<std::uint32_t> bits(values.size());
  std::memcpy(bits.data(), values.data(), values.size() * sizeof(float));
  return bits;
}

// Mostly ordinary numbers, with zeros of both signs, subnormals and large values among them.
std::vector<float> random_floats(std::mt19937& random, std::size_t count, bool extremes = true) {
  std::normal_distribution<float> normal(0.0F, 1.5F);
  std::vector<float> values(count);
  for (float& value : values) {
    value = normal(random);
    if (!extremes) continue;
    switch (random() % 40) {
      case 0:
        value = 0.0F;
        break;
      case 1:
        value = -0.0F;
        break;
      case 2:
        value *= 0x1p-130F;
        break;
      case 3:
        value *= 0x1p-60F;
        break;
      case 4:
        value *= 0x1p20F;
        break;
      default:
        break;
    }
  }
  return values;
}

std::vector<const KernelSet*> vector_sets() {
  const auto all = available_kernels();
  return {all.begin() + 1, all.end()};
}

TEST(KernelSets, TheReferenceComesFirstAndAVectorSetIsThere) {
  ASSERT_FALSE(available_kernels().empty());
  EXPECT_EQ(available_kernels().front(), &reference_kernels());
#if defined(__x86_64__)
  EXPECT_EQ(__builtin_cpu_supports("avx2") != 0, available_kernels().size() > 1);
#else
  EXPECT_STREQ(available_kernels()[1]->name, "neon");
#endif
}

TEST(KernelSets, TheEnvironmentVariableForcesOneAndRefusesOthers) {
  ASSERT_EQ(setenv("KVASIR_ISA", "scalar", 1), 0);
  EXPECT_STREQ(default_kernels().name, "scalar");
  ASSERT_EQ(setenv("KVASIR_ISA", "quantum", 1), 0);
  EXPECT_THROW(default_kernels(), Error);
  const char* foreign = available_kernels()[1]->name == std::string("neon") ? "avx2" : "neon";
  ASSERT_EQ(setenv("KVASIR_ISA", foreign, 1), 0);
  try {
    default_kernels();
    ADD_FAILURE() << "not refused";
  } catch (const Error& error) {
    const std::string message = error.what();
    EXPECT_NE(message.find("lacks that instruction set"), std::string::npos) << message;
    for (const KernelSet* set : available_kernels()) {
      EXPECT_NE(message.find(set->name), std::string::npos) << message;
    }
  }
  ASSERT_EQ(unsetenv("KVASIR_ISA"), 0);
  EXPECT_EQ(&default_kernels(), available_kernels().back());
}

// Stored rows of a type with random quants and scales of ordinary size.
std::vector<std::byte> random_weights(std::mt19937& random, TensorType type, std::int64_t n, std::int64_t k) {
  const TensorTypeInfo& info = tensor_type_info(type);
  const auto blocks = static_cast<std::size_t>(n * k) / info.block_values;
  std::vector<std::byte> data(blocks * info.block_bytes);
  for (std::byte& b : data) b = static_cast<std::byte>(random());
  const auto put_half = [&](std::size_t at, float value) {
    const std::uint16_t half = type == TensorType::kBF16 ? f32_to_bf16(value) : f32_to_f16(value);
    std::memcpy(data.data() + at, &half, 2);
  };
  std::normal_distribution<float> normal(0.0F, 0.02F);
  for (std::size_t b = 0; b < blocks; ++b) {
    const std::size_t at = b * info.block_bytes;
    switch (type) {
      case TensorType::kF32: {
        const float value = normal(random) * (random() % 50 == 0 ? 0x1p-130F : 1.0F);
        std::memcpy(data.data() + at, &value, 4);
        break;
      }
      case TensorType::kF16:
      case TensorType::kBF16:
        put_half(at, normal(random) * (random() % 50 == 0 ? 0x1p-50F : 1.0F));
        break;
      case TensorType::kQ6_K:
        put_half(at + 208, normal(random));
        break;
      case TensorType::kQ4_1:
      case TensorType::kQ5_1:
      case TensorType::kQ4_K:
      case TensorType::kQ5_K:
        put_half(at + 2, normal(random));
        [[fallthrough]];
      default:
        put_half(at, normal(random));
    }
  }
  return data;
}

PackedMatrix pack(TensorType type, const std::vector<std::byte>& data, std::int64_t n, std::int64_t k,
                  Activations activations = Activations::kDefault) {
  MemoryArena memory;
  PackedMatrix matrix = make_packed_matrix(type, n, k, activations, memory);
  for (std::int64_t panel = 0; panel < matrix.panels(); ++panel) pack_panel(matrix, type, data.data(), panel);
  return matrix;
}

// Inputs in every representation, made by one kernel set.
struct Inputs {
  std::int64_t k;
  std::vector<float> floats;
  std::vector<std::uint32_t> pairs;
  std::vector<QuantizedBlock> blocks;

  Inputs(const KernelSet& set, std::vector<float> x, std::int64_t rows, std::int64_t k_inputs)
      : k(k_inputs),
        floats(std::move(x)),
        pairs(static_cast<std::size_t>(rows * ((k + 1) / 2))),
        blocks(floats.size() / kQuantBlock) {
    for (std::int64_t row = 0; row < rows; ++row) {
      set.round_bf16(floats.data() + row * k, k, pairs.data() + row * ((k + 1) / 2));
      if (k % kQuantBlock != 0) continue;
      set.quantize(floats.data() + row * k, k, blocks.data() + row * k / kQuantBlock);
    }
  }

  InputRows all() const { return {k, floats.data(), pairs.data(), blocks.data()}; }
};

constexpr TensorType kAllTypes[] = {TensorType::kF32,  TensorType::kF16,  TensorType::kBF16,
                                    TensorType::kQ8_0, TensorType::kQ4_0, TensorType::kQ4_1,
                                    TensorType::kQ5_0, TensorType::kQ5_1, TensorType::kQ4_K,
                                    TensorType::kQ5_K, TensorType::kQ6_K};

TEST(Linear, EverySetGivesTheBitsOfTheDefinition) {
  std::mt19937 random(kSeed);
  for (const TensorType type : kAllTypes) {
    const auto block = static_cast<std::int64_t>(tensor_type_info(type).block_values);
    for (int trial = 0; trial < 12; ++trial) {
      const std::int64_t n = 1 + random() % 70;
      const std::int64_t k =
          block == 1 ? 1 + random() % 700 : block * (1 + random() % (block == 32 ? 20 : 4));
      const std::int64_t rows = trial == 0 ? 131 : 1 + random() % 28;
      const PackedMatrix w = pack(type, random_weights(random, type, n, k), n, k);
      const Inputs inputs(reference_kernels(), random_floats(random, static_cast<std::size_t>(rows * k)),
                          rows, k);
      const InputRows x = inputs.all();
      std::vector<float> expected(static_cast<std::size_t>(rows * n));
      reference_kernels().linear(w, 0, w.panels(), x, rows, expected.data(), n);
      for (const KernelSet* set : vector_sets()) {
        std::vector<float> got(expected.size());
        set->linear(w, 0, w.panels(), x, rows, got.data(), n);
        ASSERT_EQ(bits_of(got), bits_of(expected)) << set->name << " " << tensor_type_info(type).name
                                                   << " n=" << n << " k=" << k << " rows=" << rows;
      }
    }
  }
}

// Where sums of 16 bits, or a byte that changes its sign, would overflow.
TEST(Linear, QuantsAndInputsAtTheirLimitsGiveTheBitsOfTheDefinition) {
  const std::int64_t n = 16, k = 256, rows = 21;
  std::mt19937 random(kSeed + 3);
  std::vector<float> x(static_cast<std::size_t>(rows * k), 1.0F);  // all quants 127
  for (std::int64_t i = 0; i < k; ++i) {
    const auto at = [&](std::int64_t row) -> float& { return x[static_cast<std::size_t>(row * k + i)]; };
    at(1) = -1.0F;
    at(2) = i % 2 == 0 ? 1.0F : -1.0F;
    at(3) = random() % 2 == 0 ? 1.0F : -1.0F;
  }
  const Inputs inputs(reference_kernels(), x, rows, k);
  for (const TensorType type : kAllTypes) {
    if (input_kind(type) != InputKind::kInt8) continue;
    for (const unsigned codes : {0x00U, 0x7fU, 0x80U, 0x81U, 0xffU}) {
      std::vector<std::byte> data = random_weights(random, type, n, k);  // for the scales
      const TensorTypeInfo& info = tensor_type_info(type);
      const bool k_quant = info.block_values == 256, q6 = type == TensorType::kQ6_K;
      const std::size_t first = q6        ? 0
                                : k_quant ? 16
                                          : info.block_bytes - (type == TensorType::kQ8_0 ? 32 : 16);
      for (std::size_t i = 0; i < data.size(); ++i) {
        const std::size_t in_block = i % info.block_bytes;
        if (in_block >= first && (!q6 || in_block < 192)) data[i] = static_cast<std::byte>(codes);
      }
      const PackedMatrix w = pack(type, data, n, k);
      std::vector<float> expected(static_cast<std::size_t>(rows * n));
      reference_kernels().linear(w, 0, w.panels(), inputs.all(), rows, expected.data(), n);
      for (const KernelSet* set : vector_sets()) {
        std::vector<float> got(expected.size());
        set->linear(w, 0, w.panels(), inputs.all(), rows, got.data(), n);
        ASSERT_EQ(bits_of(got), bits_of(expected)) << set->name << " " << info.name << " codes " << codes;
      }
    }
  }
}

TEST(Linear, RowsDoNotDependOnTheirNeighbours) {
  std::mt19937 random(kSeed + 1);
  for (const KernelSet* set : available_kernels()) {
    for (const TensorType type :
         {TensorType::kF32, TensorType::kBF16, TensorType::kQ4_1, TensorType::kQ6_K}) {
      const std::int64_t n = 37, k = 512, rows = 11;
      const PackedMatrix w = pack(type, random_weights(random, type, n, k), n, k);
      const std::vector<float> x = random_floats(random, static_cast<std::size_t>(rows * k));
      const Inputs all(*set, x, rows, k);
      std::vector<float> together(static_cast<std::size_t>(rows * n));
      set->linear(w, 0, w.panels(), all.all(), rows, together.data(), n);
      for (std::int64_t row = 0; row < rows; ++row) {
        const Inputs one(*set, {x.begin() + row * k, x.begin() + (row + 1) * k}, 1, k);
        std::vector<float> alone(static_cast<std::size_t>(n));
        for (std::int64_t panel = 0; panel < w.panels(); ++panel) {  // each panel by itself, too
          set->linear(w, panel, panel + 1, one.all(), 1, alone.data(), n);
        }
        const std::vector<float> expected(together.begin() + row * n, together.begin() + (row + 1) * n);
        ASSERT_EQ(bits_of(alone), bits_of(expected)) << set->name << " row " << row;
      }
    }
  }
}

TEST(Linear, EveryLayoutIsCloseToTheExactProduct) {
  std::mt19937 random(kSeed + 2);
  for (const TensorType type : kAllTypes) {
    const std::int64_t n = 20, k = 1024;
    const std::vector<std::byte> data = random_weights(random, type, n, k);
    const std::vector<float> x = random_floats(random, static_cast<std::size_t>(k), false);
    const PackedMatrix exact = pack(type, data, n, k, Activations::kF32);
    const PackedMatrix w = pack(type, data, n, k);
    const Inputs inputs(reference_kernels(), x, 1, k);
    std::vector<float> y(static_cast<std::size_t>(n)), y_exact(y.size());
    reference_kernels().linear(w, 0, w.panels(), inputs.all(), 1, y.data(), n);
    reference_kernels().linear(exact, 0, exact.panels(), inputs.all(), 1, y_exact.data(), n);
    std::vector<float> weights(static_cast<std::size_t>(k));
    for (std::int64_t i = 0; i < n; ++i) {
      dequantize_output(exact, i, weights);
      double sum = 0.0, magnitude = 0.0;
      for (std::int64_t j = 0; j < k; ++j) {
        const double product =
            static_cast<double>(x[static_cast<std::size_t>(j)]) * weights[static_cast<std::size_t>(j)];
        sum += product;
        magnitude += std::fabs(product);
      }
      EXPECT_NEAR(y_exact[static_cast<std::size_t>(i)], sum, 1e-6 * magnitude) << tensor_type_info(type).name;
      // Rounding the inputs to 8 bits costs about 1/250 of each block's largest input.
      EXPECT_NEAR(y[static_cast<std::size_t>(i)], sum, 0.01 * magnitude) << tensor_type_info(type).name;
    }
  }
}

TEST(Linear, ASumThatUnderflowsToMinusZeroStaysMinusZero) {
  for (const KernelSet* set : available_kernels()) {
    const float weight = -0x1p-100F, x = 0x1p-100F;
    std::vector<std::byte> data(sizeof weight);
    std::memcpy(data.data(), &weight, sizeof weight);
    const PackedMatrix w = pack(TensorType::kF32, data, 1, 1);
    float y = 1.0F;
    set->linear(w, 0, 1, InputRows{.k = 1, .floats = &x}, 1, &y, 1);
    EXPECT_EQ(y, 0.0F);
    EXPECT_TRUE(std::signbit(y)) << set->name;  // adding it to a total of +0 would have lost the sign
  }
}

TEST(Quantize, ReachesTheDefinitionsBitsAndItsLimits) {
  std::mt19937 random(kSeed + 3);
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (int trial = 0; trial < 2000; ++trial) {
    std::vector<float> x = random_floats(random, 32);
    switch (trial % 10) {
      case 0:
        for (float& v : x) v *= 0x1p-110F;
        break;
      case 1:
        x[random() % 32] = inf;
        break;
      case 2:
        x[random() % 32] = -nan;
        break;
      case 3:
        x[random() % 32] = -std::numeric_limits<float>::max();
        break;
      case 4:  // halfway between two quants: a scale of exactly 1/4
        for (float& v : x) v = (static_cast<float>(random() % 254) - 126.5F) / 4.0F;
        x[random() % 32] = -127.0F / 4.0F;
        break;
      default:
        break;
    }
    QuantizedBlock expected, got;
    reference_kernels().quantize(x.data(), 32, &expected);
    for (const std::int8_t q : expected.quants) ASSERT_GT(q, -128);
    const bool finite = std::all_of(x.begin(), x.end(), [](float v) { return std::isfinite(v); });
    ASSERT_EQ(std::isfinite(expected.scale), finite);
    for (const KernelSet* set : vector_sets()) {
      set->quantize(x.data(), 32, &got);
      ASSERT_EQ(std::memcmp(&got, &expected, sizeof got), 0) << set->name;
    }
  }
}

TEST(Quantize, AValueThatIsNotFiniteReachesTheOutput) {
  std::mt19937 random(kSeed + 4);
  const PackedMatrix w = pack(TensorType::kQ8_0, random_weights(random, TensorType::kQ8_0, 16, 64), 16, 64);
  for (const KernelSet* set : available_kernels()) {
    for (const float bad :
         {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
      std::vector<float> x = random_floats(random, 64, false);
      x[40] = bad;
      const Inputs inputs(*set, x, 1, 64);
      std::vector<float> y(16);
      set->linear(w, 0, 1, inputs.all(), 1, y.data(), 16);
      for (const float value : y) EXPECT_FALSE(std::isfinite(value)) << set->name;
    }
  }
}

TEST(Elementwise, EverySetGivesTheBitsOfTheDefinition) {
  std::mt19937 random(kSeed + 5);
  const KernelSet& reference = reference_kernels();
  for (int trial = 0; trial < 200; ++trial) {
    const std::int64_t n = 1 + random() % 300;
    const auto size = static_cast<std::size_t>(n);
    const std::vector<float> x = random_floats(random, size), y = random_floats(random, size);
    for (const KernelSet* set : vector_sets()) {
      std::vector<float> expected(size), got(size);
      reference.rms_norm(x.data(), y.data(), 1e-5F, n, expected.data());
      set->rms_norm(x.data(), y.data(), 1e-5F, n, got.data());
      ASSERT_EQ(bits_of(got), bits_of(expected)) << "rms_norm n=" << n;
      reference.swiglu(x.data(), y.data(), n, expected.data());
      set->swiglu(x.data(), y.data(), n, got.data());
      ASSERT_EQ(bits_of(got), bits_of(expected)) << "swiglu n=" << n;
      reference.geglu(x.data(), y.data(), n, expected.data());
      set->geglu(x.data(), y.data(), n, got.data());
      ASSERT_EQ(bits_of(got), bits_of(expected)) << "geglu n=" << n;
      expected = got = x;
      reference.add(expected.data(), y.data(), n);
      set->add(got.data(), y.data(), n);
      ASSERT_EQ(bits_of(got), bits_of(expected)) << "add n=" << n;
      std::vector<std::uint32_t> expected_pairs((size + 1) / 2), got_pairs((size + 1) / 2);
      reference.round_bf16(x.data(), n, expected_pairs.data());
      set->round_bf16(x.data(), n, got_pairs.data());
      ASSERT_EQ(got_pairs, expected_pairs) << "round_bf16 n=" << n;
      for (const RopePairing pairing : {RopePairing::kHalfSplit, RopePairing::kInterleaved}) {
        std::vector<float> expected_head = random_floats(random, 2 * size), got_head = expected_head;
        reference.rope(expected_head.data(), x.data(), y.data(), 2 * n, pairing);
        set->rope(got_head.data(), x.data(), y.data(), 2 * n, pairing);
        ASSERT_EQ(bits_of(got_head), bits_of(expected_head)) << "rope n=" << n;
      }
    }
  }
}

// Difference in units of the last place of the exact value.
double ulps(float value, double exact) {
  const int exponent = std::max(std::ilogb(exact), -126);
  return std::fabs(static_cast<double>(value) - exact) / std::ldexp(1.0, exponent - 23);
}

// docs/arithmetic.md states these errors.
TEST(Elementwise, TheFloatFunctionsAreAsAccurateAsStated) {
  double exp_error = 0.0, silu_error = 0.0, gelu_error = 0.0;
  const float one = 1.0F;
  for (float x = -87.0F; x < 88.0F; x += 0.000137F) {
    exp_error = std::max(exp_error, ulps(exp_f32(x), std::exp(static_cast<double>(x))));
  }
  for (float x = -20.0F; x < 20.0F; x += 0.000173F) {
    float y;
    const double exact = x;
    reference_kernels().swiglu(&x, &one, 1, &y);
    silu_error = std::max(silu_error, ulps(y, exact / (1.0 + std::exp(-exact))));
    if (x < -4.0F) continue;  // so small that only the absolute error counts: see the next test
    reference_kernels().geglu(&x, &one, 1, &y);
    const double z = std::sqrt(2.0 / std::acos(-1.0)) * (exact + 0.044715 * exact * exact * exact);
    gelu_error = std::max(gelu_error, ulps(y, exact / (1.0 + std::exp(-2.0 * z))));
  }
  EXPECT_LT(exp_error, 0.95);
  EXPECT_LT(silu_error, 2.3);
  EXPECT_LT(gelu_error, 17.0);
}

TEST(Elementwise, GeluIsTheTanhForm) {
  const float one = 1.0F;
  for (float x = -12.0F; x < 12.0F; x += 0.0017F) {
    float y;
    reference_kernels().geglu(&x, &one, 1, &y);
    const double g = x;
    const double exact =
        0.5 * g * (1.0 + std::tanh(std::sqrt(2.0 / std::acos(-1.0)) * (g + 0.044715 * g * g * g)));
    ASSERT_NEAR(y, exact, 4e-7 * std::max(1.0, std::fabs(exact))) << x;
  }
}

// swiglu(g, 1) and geglu(g, 1): the exponential of every set seen through them, over its whole range.
TEST(Elementwise, TheExponentialIsTheSameOverItsWholeRange) {
  const std::vector<float> one(16, 1.0F);
  for (float g = -110.0F; g < 110.0F; g += 0.00371F) {
    const std::vector<float> gate(16, g);
    std::vector<float> expected(16), got(16);
    for (const KernelSet* set : vector_sets()) {
      reference_kernels().swiglu(gate.data(), one.data(), 16, expected.data());
      set->swiglu(gate.data(), one.data(), 16, got.data());
      ASSERT_EQ(bits_of(got), bits_of(expected)) << g;
      reference_kernels().geglu(gate.data(), one.data(), 16, expected.data());
      set->geglu(gate.data(), one.data(), 16, got.data());
      ASSERT_EQ(bits_of(got), bits_of(expected)) << g;
    }
  }
}

// A cache of `capacity` positions whose blocks lie in a shuffled order, everything unwritten being NaN.
struct TestCache {
  std::vector<std::byte> k, v;
  std::vector<std::size_t> offsets;
  KvView view;

  TestCache(std::mt19937& random, KvType type, std::int64_t capacity, std::int64_t n_kv_head,
            std::int64_t head_dim) {
    const std::int64_t blocks = (capacity + kCacheBlock - 1) / kCacheBlock;
    const auto block_elements = static_cast<std::size_t>(kCacheBlock * head_dim);
    const std::size_t head_stride = static_cast<std::size_t>(blocks) * block_elements + random() % 3 * 16;
    for (std::int64_t b = 0; b < blocks; ++b) offsets.push_back(static_cast<std::size_t>(b) * block_elements);
    // The last block may be shorter and has to stay last.
    std::shuffle(offsets.begin(), offsets.end() - 1, random);
    k.assign((static_cast<std::size_t>(n_kv_head) * head_stride + 16) * kv_type_bytes(type), std::byte{0xff});
    v = k;
    view = {type, k.data(), v.data(), offsets, head_stride, capacity};
  }
};

// All spans of a query by one kernel set; the sums start as NaN.
void attend(const KernelSet& set, const KvView& cache, const AttentionQuery& query) {
  const auto spans = static_cast<std::size_t>(query.span_end() - query.span_begin());
  const auto queries = static_cast<std::size_t>(query.rows * query.n_group * sums_stride(query.head_dim));
  std::vector<float> sums(spans * queries, std::numeric_limits<float>::quiet_NaN());
  std::vector<float> scratch(attention_scratch(query), std::numeric_limits<float>::quiet_NaN());
  set.attention(cache, query, query.span_begin(), query.span_end(), sums.data(), scratch.data());
  set.combine_spans(query, sums.data());
}

TEST(StoreKv, EverySetWritesTheBitsOfTheDefinition) {
  std::mt19937 random(kSeed + 9);
  for (int trial = 0; trial < 200; ++trial) {
    const auto type = static_cast<KvType>(trial % 3);
    const std::int64_t capacity = 1 + random() % 40, n_kv_head = 1 + random() % 3;
    const std::int64_t head_dim = 2 * (1 + random() % 40);
    const TestCache empty(random, type, capacity, n_kv_head, head_dim);
    const auto row = static_cast<std::size_t>(n_kv_head * head_dim);
    std::vector<float> k = random_floats(random, row), v = random_floats(random, row);
    k[random() % row] = std::numeric_limits<float>::infinity();  // and beyond a half's range, at its edges
    k[random() % row] = 65519.0F;
    v[random() % row] = 65520.0F;
    v[random() % row] = -0x1.8p-25F;
    v[random() % row] = std::numeric_limits<float>::quiet_NaN();
    const std::int64_t position = static_cast<std::int64_t>(random()) % capacity;
    const auto written = [&](const KernelSet& set) {
      TestCache cache = empty;
      cache.view = {type, cache.k.data(), cache.v.data(), cache.offsets, cache.view.head_stride, capacity};
      set.store_kv(cache.view, position, k.data(), v.data(), n_kv_head, head_dim);
      return std::pair(cache.k, cache.v);
    };
    for (const KernelSet* set : vector_sets()) {
      ASSERT_EQ(written(*set), written(reference_kernels())) << set->name << " trial " << trial;
    }
  }
}

TEST(Attention, EverySetGivesTheBitsOfTheDefinitionAndUnwrittenCellsDoNotMatter) {
  std::mt19937 random(kSeed + 6);
  for (int trial = 0; trial < 150; ++trial) {
    const auto type = static_cast<KvType>(trial % 3);
    const std::int64_t capacity = 1 + random() % 700;
    const std::int64_t n_kv_head = 1 + random() % 3, n_group = 1 + random() % 6;
    const std::int64_t head_dim = 2 * (1 + random() % 70);
    TestCache cache(random, type, capacity, n_kv_head, head_dim);
    const std::int64_t last = static_cast<std::int64_t>(random()) % capacity;
    const std::int64_t rows =
        std::min<std::int64_t>(last + 1, trial % 5 == 0 ? 1 : 1 + static_cast<std::int64_t>(random() % 40));
    const auto row = static_cast<std::size_t>(n_kv_head * head_dim);
    for (std::int64_t p = 0; p <= last; ++p) {
      const std::vector<float> k = random_floats(random, row, false), v = random_floats(random, row, false);
      reference_kernels().store_kv(cache.view, p, k.data(), v.data(), n_kv_head, head_dim);
    }
    const std::int64_t position = last - rows + 1;
    const std::int64_t first = trial % 4 == 0 ? static_cast<std::int64_t>(random()) % (position + 1) : 0;
    const std::int64_t row_stride = n_group * head_dim + 3;
    const std::vector<float> q = random_floats(random, static_cast<std::size_t>(rows * row_stride), false);
    std::vector<float> expected(q.size()), got(q.size());
    AttentionQuery query{q.data(),
                         expected.data(),
                         row_stride,
                         rows,
                         n_group,
                         head_dim,
                         static_cast<std::int64_t>(random()) % n_kv_head,
                         first,
                         position,
                         0.25F};
    attend(reference_kernels(), cache.view, query);
    for (const float value : expected) ASSERT_TRUE(std::isfinite(value));
    for (const KernelSet* set : vector_sets()) {
      query.out = got.data();
      attend(*set, cache.view, query);
      ASSERT_EQ(bits_of(got), bits_of(expected))
          << set->name << " trial " << trial << " capacity " << capacity << " head_dim " << head_dim
          << " first " << first << " position " << position << " rows " << rows;
    }
  }
}

TEST(Attention, RowsTogetherGiveTheBitsOfEachAlone) {
  std::mt19937 random(kSeed + 8);
  const std::int64_t head_dim = 64, n_group = 3, rows = 37, position = 250;
  TestCache cache(random, KvType::kF16, 300, 1, head_dim);
  for (std::int64_t p = 0; p < position + rows; ++p) {
    const std::vector<float> k = random_floats(random, 64, false), v = random_floats(random, 64, false);
    reference_kernels().store_kv(cache.view, p, k.data(), v.data(), 1, head_dim);
  }
  const std::vector<float> q =
      random_floats(random, static_cast<std::size_t>(rows * n_group * head_dim), false);
  for (const KernelSet* set : available_kernels()) {
    std::vector<float> together(q.size()), alone(q.size());
    const std::int64_t stride = n_group * head_dim;
    attend(*set, cache.view,
           {q.data(), together.data(), stride, rows, n_group, head_dim, 0, 0, position, 0.125F});
    for (std::int64_t r = 0; r < rows; ++r) {
      attend(*set, cache.view,
             {q.data() + r * stride, alone.data() + r * stride, stride, 1, n_group, head_dim, 0, 0,
              position + r, 0.125F});
    }
    ASSERT_EQ(bits_of(together), bits_of(alone)) << set->name;
  }
}

TEST(Attention, IsTheSoftmaxOfTheScores) {
  std::mt19937 random(kSeed + 7);
  const std::int64_t head_dim = 32, last = 700;
  TestCache cache(random, KvType::kF32, 720, 1, head_dim);
  std::vector<std::vector<float>> ks, vs;
  for (std::int64_t p = 0; p <= last; ++p) {
    ks.push_back(random_floats(random, 32, false));
    vs.push_back(random_floats(random, 32, false));
    reference_kernels().store_kv(cache.view, p, ks.back().data(), vs.back().data(), 1, head_dim);
  }
  const std::vector<float> q = random_floats(random, 32, false);
  std::vector<float> out(32);
  attend(reference_kernels(), cache.view, {q.data(), out.data(), head_dim, 1, 1, head_dim, 0, 0, last, 0.5F});
  std::vector<double> weights;
  double total = 0.0;
  for (const auto& k : ks) {
    double dot = 0.0;
    for (std::size_t d = 0; d < 32; ++d) dot += static_cast<double>(q[d]) * k[d];
    weights.push_back(std::exp(dot * 0.5));
    total += weights.back();
  }
  for (std::size_t d = 0; d < 32; ++d) {
    double expected = 0.0;
    for (std::size_t p = 0; p < weights.size(); ++p) expected += weights[p] / total * vs[p][d];
    EXPECT_NEAR(out[d], expected, 1e-5);
  }
}

TEST(Half, RoundsToNearestEvenAndReadsBackExactly) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto half = static_cast<std::uint16_t>(bits);
    const float value = f16_to_f32(half);
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(f16_to_f32(f32_to_f16(value))));
    } else {
      ASSERT_EQ(f32_to_f16(value), half);
      // Halfway to the next value: to the even one of the two.
      const float next = f16_to_f32(static_cast<std::uint16_t>(half + 1));
      if (std::isfinite(next) && std::isfinite(value) && (half & 0x7fff) != 0x7fff) {
        const float middle = static_cast<float>((static_cast<double>(value) + next) / 2);
        ASSERT_EQ(f32_to_f16(middle), (half & 1) == 0 ? half : half + 1) << bits;
        ASSERT_EQ(f32_to_f16(std::nextafter(middle, value)), half) << bits;
        ASSERT_EQ(f32_to_f16(std::nextafter(middle, next)), half + 1) << bits;
      }
    }
  }
  EXPECT_EQ(f32_to_f16(65519.0F), 0x7bff);
  EXPECT_EQ(f32_to_f16(65520.0F), 0x7c00);
  EXPECT_EQ(f32_to_bf16(1.00390625F), 0x3f80);  // halfway: even
  EXPECT_EQ(f32_to_bf16(1.01171875F), 0x3f82);  // halfway: even is above
  EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(std::bit_cast<float>(0x7f800001U)))));
}

}  // namespace
}  // namespace kvasir::kernels
