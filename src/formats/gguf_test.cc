#include "formats/gguf.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <utility>

#include "formats/gguf_builder.h"
#include "formats/untrusted_file_test.h"
#include "kvasir/error.h"

namespace kvasir {
namespace {

constexpr auto kString = static_cast<std::uint32_t>(GgufValueType::kString);
constexpr auto kArray = static_cast<std::uint32_t>(GgufValueType::kArray);
constexpr auto kUint32 = static_cast<std::uint32_t>(GgufValueType::kUint32);
constexpr std::uint64_t kMax64 = std::numeric_limits<std::uint64_t>::max();

std::vector<std::byte> counted_bytes(std::size_t count) {
  std::vector<std::byte> bytes(count);
  for (std::size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(i);
  return bytes;
}

// A small file with every kind of value.
GgufBuilder valid_file() {
  GgufBuilder file;
  file.add("general.architecture", "toy").add("empty.string", "");
  file.add("int.u8", std::uint8_t{200}).add("int.i8", std::int8_t{-100});
  file.add("int.u16", std::uint16_t{60'000}).add("int.i16", std::int16_t{-30'000});
  file.add("int.u32", std::uint32_t{4'000'000'000}).add("int.i32", std::int32_t{-2'000'000'000});
  file.add("int.u64", std::uint64_t{1} << 62).add("int.i64", std::numeric_limits<std::int64_t>::min());
  file.add("int.too_large", kMax64);
  file.add("float.f32", 1.5F).add("float.f64", 0.1).add("bool.yes", true).add("bool.no", false);
  file.add_array<std::string>("array.strings", {"a", "", "longer text"});
  file.add_array<std::int32_t>("array.ints", {1, -2, 3}).add_array<float>("array.floats", {0.5F, -1});
  file.add_array<std::uint64_t>("array.too_large", {1, kMax64}).add_array<bool>("array.bools", {true, false});
  file.add_array<std::uint8_t>("array.empty", {});
  GgufBytes nested;  // [[7, 8], []] of uint32
  nested.number(kArray).number(std::uint64_t{2});
  nested.number(kUint32).number(std::uint64_t{2}).number(std::uint32_t{7}).number(std::uint32_t{8});
  nested.number(kUint32).number(std::uint64_t{0});
  file.add_raw("array.nested", kArray, nested).add("after.nested", std::uint32_t{9});
  file.add_f32("a.weight", {2, 3}, {1, 2, 3, 4, 5, 6});
  file.add_tensor("b.weight", TensorType::kQ8_0, {2, 32}, counted_bytes(2 * 34));
  file.add_tensor("c.weight", TensorType::kQ4_K, {256}, counted_bytes(144));
  return file;
}

GgufFile parsed(const GgufBuilder& builder) { return GgufFile::parse(builder.build(), "toy.gguf"); }

template <class Call>
std::string message_of(Call call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kFormat) << error.what();
    return error.what();
  }
  return "no error";
}

TEST(Gguf, ReadsWhatTheBuilderWrote) {
  for (const std::uint32_t version : {2U, 3U}) {
    const TemporaryFolder folder;
    const std::string path = folder.file("toy.gguf");
    GgufBuilder builder = valid_file();
    builder.version(version).write(path);
    GgufFile moved = GgufFile::open(path);
    const GgufFile file = std::move(moved);
    EXPECT_EQ(file.path(), path);
    EXPECT_EQ(file.version(), version);
    EXPECT_EQ(file.alignment(), 32U);
    EXPECT_EQ(file.file_bytes(), builder.build().size());
    EXPECT_EQ(file.entries().size(), 23U);
    EXPECT_EQ(file.entries()[0].key, "general.architecture");
    ASSERT_EQ(file.tensors().size(), 3U);
    EXPECT_EQ(file.tensors()[1].name, "b.weight");
  }
}

TEST(Gguf, GivesTensorsWithRowMajorShapesAndTheirBytes) {
  const GgufFile file = parsed(valid_file());
  const GgufTensor& a = file.tensor("a.weight");
  EXPECT_EQ(a.type, TensorType::kF32);
  EXPECT_EQ(a.shape, (std::vector<std::uint64_t>{2, 3}));
  const std::vector<float> expected = {1, 2, 3, 4, 5, 6};
  ASSERT_EQ(a.data.size(), 24U);
  EXPECT_EQ(std::memcmp(a.data.data(), expected.data(), 24), 0);
  const GgufTensor* b = file.find_tensor("b.weight");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->shape, (std::vector<std::uint64_t>{2, 32}));
  EXPECT_EQ(std::vector(b->data.begin(), b->data.end()), counted_bytes(68));
  EXPECT_EQ(file.tensor("c.weight").data.size(), 144U);
  EXPECT_EQ(file.find_tensor("d.weight"), nullptr);
  EXPECT_EQ(message_of([&] { file.tensor("d.weight"); }), "toy.gguf: tensor 'd.weight': is missing");
}

TEST(Gguf, GivesValuesOfEveryType) {
  const GgufFile file = parsed(valid_file());
  EXPECT_EQ(file.get_string("general.architecture"), "toy");
  EXPECT_EQ(file.get_string("empty.string"), "");
  EXPECT_EQ(file.get_int("int.u8"), 200);
  EXPECT_EQ(file.get_int("int.i8"), -100);
  EXPECT_EQ(file.get_int("int.u16"), 60'000);
  EXPECT_EQ(file.get_int("int.i16"), -30'000);
  EXPECT_EQ(file.get_int("int.u32"), 4'000'000'000);
  EXPECT_EQ(file.get_int("int.i32"), -2'000'000'000);
  EXPECT_EQ(file.get_int("int.u64"), std::int64_t{1} << 62);
  EXPECT_EQ(file.get_int("int.i64"), std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(file.get_float("float.f32"), 1.5);
  EXPECT_EQ(file.get_float("float.f64"), 0.1);
  EXPECT_EQ(file.find_bool("bool.yes"), true);
  EXPECT_EQ(file.find_bool("bool.no"), false);
  EXPECT_EQ(file.find_string_array("array.strings"), (std::vector<std::string_view>{"a", "", "longer text"}));
  EXPECT_EQ(file.find_int_array("array.ints"), (std::vector<std::int64_t>{1, -2, 3}));
  EXPECT_EQ(file.find_float_array("array.floats"), (std::vector<double>{0.5, -1}));
  EXPECT_EQ(file.find_int_array("array.empty"), std::vector<std::int64_t>());
  EXPECT_EQ(file.find("array.nested")->count, 2U);
  EXPECT_EQ(file.get_int("after.nested"), 9);
}

TEST(Gguf, AnAbsentKeyIsNothingOrAnError) {
  const GgufFile file = parsed(valid_file());
  EXPECT_EQ(file.find("absent"), nullptr);
  EXPECT_EQ(file.find_int("absent"), std::nullopt);
  EXPECT_EQ(file.find_float("absent"), std::nullopt);
  EXPECT_EQ(file.find_bool("absent"), std::nullopt);
  EXPECT_EQ(file.find_string("absent"), std::nullopt);
  EXPECT_EQ(file.find_string_array("absent"), std::nullopt);
  EXPECT_EQ(file.find_int_array("absent"), std::nullopt);
  EXPECT_EQ(file.find_float_array("absent"), std::nullopt);
  const std::string missing = "toy.gguf: key 'absent': is missing";
  EXPECT_EQ(message_of([&] { file.get_int("absent"); }), missing);
  EXPECT_EQ(message_of([&] { file.get_float("absent"); }), missing);
  EXPECT_EQ(message_of([&] { file.get_string("absent"); }), missing);
}

TEST(Gguf, AValueOfAnotherTypeIsAnErrorNamingTheKey) {
  const GgufFile file = parsed(valid_file());
  EXPECT_EQ(message_of([&] { file.find_int("float.f32"); }),
            "toy.gguf: key 'float.f32': must be an integer below 2^63, is of type float32");
  EXPECT_EQ(message_of([&] { file.find_int("array.ints"); }),
            "toy.gguf: key 'array.ints': must be an integer below 2^63, is an array of int32");
  const auto names = [&](const char* key, auto call) {
    EXPECT_EQ(message_of(call).rfind(std::string("toy.gguf: key '") + key + "': must be ", 0), 0U)
        << message_of(call);
  };
  names("int.too_large", [&] { file.find_int("int.too_large"); });
  names("bool.yes", [&] { file.get_int("bool.yes"); });
  names("int.u32", [&] { file.get_float("int.u32"); });
  names("int.u8", [&] { file.find_bool("int.u8"); });
  names("int.u8", [&] { file.get_string("int.u8"); });
  names("general.architecture", [&] { file.find_string_array("general.architecture"); });
  names("array.ints", [&] { file.find_string_array("array.ints"); });
  names("array.strings", [&] { file.find_int_array("array.strings"); });
  names("array.too_large", [&] { file.find_int_array("array.too_large"); });
  names("array.ints", [&] { file.find_float_array("array.ints"); });
  names("array.strings", [&] { file.find_string("array.strings"); });
}

// --- Broken files
// -----------------------------------------------------------------------------------------------

std::vector<std::byte> first_bytes(std::size_t count) {
  std::vector<std::byte> bytes = valid_file().build();
  bytes.resize(count);
  return bytes;
}

// An entry "x" of `type` with these bytes behind it.
std::vector<std::byte> with_value(std::uint32_t type, const GgufBytes& value) {
  return GgufBuilder().add_raw("x", type, value).build();
}

GgufBytes array_of(std::uint32_t element_type, std::uint64_t count) {
  return GgufBytes().number(element_type).number(count);
}

GgufBytes nested_array(int depth) {
  GgufBytes bytes;
  for (int i = 1; i < depth; ++i) bytes.raw(array_of(kArray, 1).bytes());
  return bytes.raw(array_of(kUint32, 0).bytes());
}

// A file of one tensor "t" and 4096 bytes of data.
std::vector<std::byte> with_tensor(const std::vector<std::uint64_t>& dimensions, std::uint32_t type = 0,
                                   std::uint64_t offset = 0) {
  return GgufBuilder()
      .add_raw_tensor("t", dimensions, type, offset)
      .add_raw_data(counted_bytes(4096))
      .build();
}

std::vector<std::byte> with_two_tensors(const char* second_name, std::uint64_t second_offset) {
  GgufBuilder file;
  file.add_raw_tensor("t", {16}, 0, 0).add_raw_tensor(second_name, {16}, 0, second_offset);
  return file.add_raw_data(counted_bytes(4096)).build();
}

std::vector<std::byte> with_header(const char* magic, std::uint32_t version, std::uint64_t tensors,
                                   std::uint64_t entries) {
  GgufBytes file;
  file.raw(std::as_bytes(std::span(magic, 4))).number(version).number(tensors).number(entries);
  return file.raw(counted_bytes(64)).bytes();
}

TEST(Gguf, RefusesBrokenHeaders) {
  const std::vector<BrokenFile> files = {
      {"wrong magic", with_header("GGML", 3, 0, 0), "header", "not a GGUF file"},
      {"not even the magic", {std::byte{'P'}, std::byte{'K'}}, "header", "not a GGUF file"},
      {"big endian", with_header("GGUF", 0x03000000, 0, 0), "header", "big endian"},
      {"version 0", with_header("GGUF", 0, 0, 0), "header", "version 0"},
      {"version 1", with_header("GGUF", 1, 0, 0), "header", "version 1"},
      {"version 99", with_header("GGUF", 99, 0, 0), "header", "version 99"},
      {"0 bytes", first_bytes(0), "header", "ends after 0 of"},
      {"4 bytes", first_bytes(4), "header", "ends after 4 of"},
      {"23 bytes", first_bytes(23), "header", "ends after 23 of"},
      {"too many entries", with_header("GGUF", 3, 0, kMax64), "header",
       "metadata count 18446744073709551615"},
      {"a few entries too many", with_header("GGUF", 3, 0, 5), "header", "metadata count 5"},
      {"too many tensors", with_header("GGUF", 3, kMax64 / 2, 0), "header",
       "tensor count 9223372036854775807"},
  };
  for (const BrokenFile& file : files) expect_refused<GgufFile>(file);
}

TEST(Gguf, RefusesBrokenMetadata) {
  const auto length = [](std::uint64_t bytes) { return GgufBytes().number(bytes).number(0.0); };
  const auto aligned = [](auto value) { return GgufBuilder().add("general.alignment", value).build(); };
  const std::vector<BrokenFile> files = {
      {"alignment 0", aligned(std::uint32_t{0}), "key 'general.alignment'",
       "0 is not a positive multiple of 8"},
      {"alignment 3", aligned(std::uint32_t{3}), "key 'general.alignment'",
       "3 is not a positive multiple of 8"},
      {"alignment -1", aligned(std::int32_t{-1}), "key 'general.alignment'",
       "-1 is not a positive multiple of 8"},
      {"alignment -8", aligned(std::int64_t{-8}), "key 'general.alignment'",
       "-8 is not a positive multiple of 8"},
      {"alignment a string", aligned("32"), "key 'general.alignment'",
       "must be an integer, is of type string"},
      {"alignment an array", GgufBuilder().add_array<std::uint32_t>("general.alignment", {32}).build(),
       "key 'general.alignment'", "must be an integer, is an array"},
      {"alignment 2^64-8", aligned(kMax64 - 7), "key 'general.alignment'", "must be an integer"},
      {"string of 2^64-1", with_value(kString, length(kMax64)), "key 'x'",
       "string needs 18446744073709551615 bytes"},
      {"string of 2^40", with_value(kString, length(std::uint64_t{1} << 40)), "key 'x'",
       "needs 1099511627776 bytes"},
      {"string one byte too long", with_value(kString, length(9)), "key 'x'", "needs 9 bytes, 8 are left"},
      {"array of 2^61 int64", with_value(kArray, array_of(11, std::uint64_t{1} << 61)), "key 'x'",
       "2305843009213693952 values of type int64"},
      {"array of 2^61 strings", with_value(kArray, array_of(kString, std::uint64_t{1} << 61)), "key 'x'",
       "2305843009213693952 values of type string"},
      {"array of 2^64-1 bytes", with_value(kArray, array_of(0, kMax64)), "key 'x'", "values of type uint8"},
      {"array of 2^61 arrays", with_value(kArray, array_of(kArray, std::uint64_t{1} << 61)), "key 'x'",
       "values of type array"},
      {"array in array 1000 deep", with_value(kArray, nested_array(1000)), "key 'x'",
       "nested more than 4 deep"},
      {"array in array 5 deep", with_value(kArray, nested_array(5)), "key 'x'", "nested more than 4 deep"},
      {"unknown type", with_value(13, GgufBytes().number(0.0)), "key 'x'", "value type 13 is unknown"},
      {"unknown element type", with_value(kArray, array_of(4711, 0)), "key 'x'",
       "element type 4711 is unknown"},
      {"array without count", with_value(kArray, GgufBytes().number(kUint32)), "key 'x'",
       "array count needs 8 bytes"},
      {"number cut off", with_value(10, GgufBytes().number(1.0F)), "key 'x'", "1 values of type uint64"},
      {"a bool of 2", with_value(7, GgufBytes().number(std::uint8_t{2})), "key 'x'",
       "bool is neither 0 nor 1"},
      {"a bool of 2 in an array", with_value(kArray, array_of(7, 2).number(std::uint16_t{0x0201})), "key 'x'",
       "bool is neither 0 nor 1"},
      {"empty key", GgufBuilder().add("a", 1.0).add("", 1.0).build(), "key number 1", "the key is empty"},
      {"key of 65536 bytes", GgufBuilder().add(std::string(65536, 'k'), 1).build(), "key 'kkk",
       "at most 65535"},
      {"key with control characters", GgufBuilder().add_raw("a\nb\xff", 99, GgufBytes()).build(),
       "key 'a\\x0ab\ufffd'", "value type 99"},
      {"key twice", GgufBuilder().add("a", 1).add("b", 1).add("a", 2.0).build(), "key 'a'", "appears twice"},
  };
  for (const BrokenFile& file : files) expect_refused<GgufFile>(file);
}

TEST(Gguf, RefusesBrokenTensors) {
  constexpr std::uint64_t k2To32 = std::uint64_t{1} << 32;
  const std::vector<BrokenFile> files = {
      {"no dimensions", with_tensor({}), "tensor 't'", "0 dimensions, 1 to 4"},
      {"5 dimensions", with_tensor({1, 1, 1, 1, 1}), "tensor 't'", "5 dimensions, 1 to 4"},
      {"dimension 0", with_tensor({4, 0}), "tensor 't'", "dimension 1 is 0"},
      {"2^32 x 2^32", with_tensor({k2To32, k2To32}), "tensor 't'", "dimensions overflow"},
      {"2^32 x 2^32 of Q8_0", with_tensor({k2To32, k2To32}, 8), "tensor 't'", "dimensions overflow"},
      {"2^63 x 2 x 2^63", with_tensor({kMax64 / 2 + 1, 2, kMax64 / 2 + 1}), "tensor 't'",
       "dimensions overflow"},
      {"2^64-4 bytes: only the padding overflows", with_tensor({kMax64 / 4}), "tensor 't'",
       "18446744073709551612 bytes at offset 0 end beyond"},
      {"2^62 numbers: the size in bytes overflows", with_tensor({kMax64 / 4 + 1}), "tensor 't'", "overflow"},
      {"size and offset overflow together", with_tensor({kMax64 / 4}, 0, 32), "tensor 't'", "end beyond"},
      {"type never defined", with_tensor({4}, 99), "tensor 't'", "type 99 is unknown"},
      {"type 2^32-1", with_tensor({4}, 0xffffffff), "tensor 't'", "type 4294967295 is unknown"},
      {"type not read", with_tensor({256}, 17), "tensor 't'", "type IQ2_XS is not supported"},
      {"type not read: the highest", with_tensor({256}, 39), "tensor 't'", "type MXFP4 is not supported"},
      {"row not in whole blocks", with_tensor({48, 32}, 8), "tensor 't'", "rows of 48 numbers"},
      {"offset not aligned", with_tensor({4}, 0, 16), "tensor 't'",
       "offset 16 is no multiple of the alignment 32"},
      {"offset beyond the end", with_tensor({4}, 0, 1 << 20), "tensor 't'",
       "end beyond the file's 4096 bytes"},
      {"offset 2^64-32", with_tensor({4}, 0, kMax64 - 31), "tensor 't'", "end beyond the file's 4096 bytes"},
      {"data one row too short", with_tensor({32, 33}), "tensor 't'", "4224 bytes at offset 0 end beyond"},
      {"no data section", GgufBuilder().add_raw_tensor("t", {4}, 0, 0).build(), "tensor 't'",
       "beyond the file's 0"},
      {"name twice", with_two_tensors("t", 64), "tensor 't'", "appears twice"},
      {"the same data twice", with_two_tensors("u", 0), "tensor '", "overlaps that of '"},
      {"overlap", with_two_tensors("u", 32), "tensor 'u'", "overlaps that of 't'"},
      {"empty name", with_two_tensors("", 64), "tensor number 1", "the name is empty"},
  };
  for (const BrokenFile& file : files) expect_refused<GgufFile>(file);
}

TEST(Gguf, RefusesAFileCutOffAnywhere) {
  const std::vector<std::byte> bytes = valid_file().build();
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const std::string message = message_of([&] { GgufFile::parse(first_bytes(size), "cut.gguf"); });
    ASSERT_EQ(message.rfind("cut.gguf: ", 0), 0U) << "after " << size << " bytes: " << message;
  }
}

// Reads everything that the file offers, so that the address sanitizer sees a wrong pointer.
std::uint64_t read_all(const GgufFile& file) {
  std::uint64_t sum = 0;
  const auto attempt = [&](auto call) {
    try {
      sum += call() ? 1 : 0;
    } catch (const Error&) {
    }
  };
  for (const GgufEntry& entry : file.entries()) {
    EXPECT_EQ(file.find(entry.key), &entry);
    for (const std::byte byte : entry.data) sum += static_cast<std::uint64_t>(byte);
    attempt([&] { return file.find_int(entry.key); });
    attempt([&] { return file.find_float(entry.key); });
    attempt([&] { return file.find_bool(entry.key); });
    attempt([&] { return file.find_string(entry.key); });
    attempt([&] { return file.find_string_array(entry.key); });
    attempt([&] { return file.find_int_array(entry.key); });
    attempt([&] { return file.find_float_array(entry.key); });
  }
  for (const GgufTensor& tensor : file.tensors()) {
    EXPECT_EQ(file.find_tensor(tensor.name), &tensor);
    for (const std::byte byte : tensor.data) sum += static_cast<std::uint64_t>(byte);
  }
  return sum;
}

TEST(Gguf, FlippedBytesAreReadOrRefusedButNeverCrash) {
  flip_bytes(valid_file().build(), 5'000, [](std::vector<std::byte> bytes) {
    read_all(GgufFile::parse(std::move(bytes), "flipped.gguf"));
  });
}

// --- Unusual files
// ----------------------------------------------------------------------------------------------

TEST(Gguf, ReadsOtherAlignments) {
  for (const std::uint32_t alignment : {8U, 24U, 64U, 4096U}) {
    GgufBuilder builder;
    builder.alignment(alignment).add_f32("a", {1}, {1}).add_f32("b", {1}, {2});
    const GgufFile file = parsed(builder);
    EXPECT_EQ(file.alignment(), alignment);
    EXPECT_EQ(file.tensor("b").data.data() - file.tensor("a").data.data(), alignment);
    float b = 0;
    std::memcpy(&b, file.tensor("b").data.data(), sizeof b);
    EXPECT_EQ(b, 2);
  }
}

TEST(Gguf, ReadsTensorsThatDoNotLieInTheirOrder) {
  GgufBuilder builder;
  builder.add_raw_tensor("last", {8}, 0, 128)
      .add_raw_tensor("first", {8}, 0, 0)
      .add_raw_tensor("middle", {8}, 0, 64);
  const GgufFile file = parsed(builder.add_raw_data(counted_bytes(128 + 32)));
  EXPECT_EQ(file.tensors()[0].name, "last");
  EXPECT_EQ(file.tensor("last").data[0], std::byte{128});
  EXPECT_EQ(file.tensor("first").data[0], std::byte{0});
  EXPECT_EQ(file.tensor("middle").data[0], std::byte{64});
}

TEST(Gguf, ReadsFilesWithoutTensorsOrEntries) {
  EXPECT_TRUE(parsed(GgufBuilder()).tensors().empty());
  EXPECT_EQ(parsed(GgufBuilder().add("k", 1)).get_int("k"), 1);
  EXPECT_EQ(parsed(GgufBuilder().add_f32("t", {1, 1, 1, 2}, {1, 2})).tensor("t").shape.size(), 4U);
  EXPECT_EQ(parsed(GgufBuilder().add_raw("x", kArray, nested_array(4))).find("x")->count, 1U);
}

TEST(Gguf, ReadsMoreThanAMillionKeys) {
  constexpr std::uint64_t kKeys = 1'300'000;
  GgufBuilder builder;
  for (std::uint64_t i = 0; i < kKeys; ++i) {
    builder.add(fmt::format("k{}", i * 7919 % kKeys), static_cast<std::uint8_t>(i));
  }
  std::vector<std::byte> bytes = builder.build();
  const auto start = std::chrono::steady_clock::now();
  const GgufFile file = GgufFile::parse(std::move(bytes), "many.gguf");
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  std::cout << "opened in " << seconds.count() << " s\n";
  ASSERT_EQ(file.entries().size(), kKeys);
  for (std::uint64_t i = 0; i < kKeys; i += 997) {
    ASSERT_EQ(file.get_int(fmt::format("k{}", i * 7919 % kKeys)), i % 256);
  }
}

// --- The model that script/bootstrap installs
// -------------------------------------------------------------------

std::string installed_model() {
  const auto variable = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value != nullptr ? value : "");
  };
  if (const std::string path = variable("KVASIR_MODEL"); !path.empty()) return path;
  const std::string data_home = variable("XDG_DATA_HOME");
  return (data_home.empty() ? variable("HOME") + "/.local/share" : data_home) +
         "/kvasir/models/SmolLM2-135M-Instruct.Q4_1.gguf";
}

TEST(Gguf, ReadsSmolLm2) {
  const std::string path = installed_model();
  ASSERT_TRUE(std::filesystem::exists(path))
      << path << " is missing: run script/bootstrap or set KVASIR_MODEL";
  const GgufFile file = GgufFile::open(path);
  EXPECT_EQ(file.version(), 3U);
  EXPECT_EQ(file.entries().size(), 33U);
  EXPECT_EQ(file.tensors().size(), 272U);
  EXPECT_EQ(file.get_string("general.architecture"), "llama");
  EXPECT_EQ(file.get_int("llama.block_count"), 30);
  EXPECT_EQ(file.get_int("llama.attention.head_count_kv"), 3);
  EXPECT_EQ(file.get_float("llama.rope.freq_base"), 100000);
  EXPECT_EQ(file.get_float("llama.attention.layer_norm_rms_epsilon"), double{1e-5F});
  EXPECT_EQ(file.find_bool("tokenizer.ggml.add_bos_token"), false);
  const auto tokens = file.find_string_array("tokenizer.ggml.tokens").value();
  ASSERT_EQ(tokens.size(), 49152U);
  EXPECT_EQ(tokens[1], "<|im_start|>");
  EXPECT_EQ(file.find_int_array("tokenizer.ggml.token_type").value().size(), 49152U);
  EXPECT_EQ(file.find_string_array("tokenizer.ggml.merges").value()[0], "\u0120 t");
  const GgufTensor& embedding = file.tensor("token_embd.weight");
  EXPECT_EQ(embedding.type, TensorType::kQ8_0);
  EXPECT_EQ(embedding.shape, (std::vector<std::uint64_t>{49152, 576}));
  EXPECT_EQ(embedding.data.size(), 30081024U);
  const GgufTensor& last = file.tensor("output_norm.weight");
  EXPECT_EQ(last.type, TensorType::kF32);
  EXPECT_EQ(last.data.size(), 2304U);
}

}  // namespace
}  // namespace kvasir
