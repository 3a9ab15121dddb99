#include "formats/safetensors.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <cstring>
#include <utility>

#include "formats/untrusted_file_test.h"
#include "kvasir/error.h"

namespace kvasir {
namespace {

std::vector<std::byte> with_header(std::uint64_t length, const std::string& header, std::size_t data_bytes) {
  std::vector<std::byte> file(sizeof length + header.size() + data_bytes);
  std::memcpy(file.data(), &length, sizeof length);
  std::memcpy(file.data() + sizeof length, header.data(), header.size());
  for (std::size_t i = 0; i < data_bytes; ++i)
    file[sizeof length + header.size() + i] = static_cast<std::byte>(i);
  return file;
}

std::vector<std::byte> with_header(const std::string& header, std::size_t data_bytes) {
  return with_header(header.size(), header, data_bytes);
}

const std::string kValidHeader = R"({"b":{"dtype":"F32","shape":[2,3],"data_offsets":[4,28]},)"
                                 R"("__metadata__":{"format":"pt","note":"x \"y\""},)"
                                 R"("a":{"shape":[2],"data_offsets":[0,4],"dtype":"F16","extra":[{}]},)"
                                 R"("none":{"dtype":"I64","shape":[0,7],"data_offsets":[28,28]},)"
                                 R"("one":{"dtype":"U8","shape":[],"data_offsets":[28,29]}}  )";

TEST(Safetensors, ReadsTensorsInTheOrderOfTheirData) {
  const TemporaryFolder folder;
  const std::string path = folder.write("a.safetensors", with_header(kValidHeader, 29));
  SafetensorsFile moved = SafetensorsFile::open(path);
  const SafetensorsFile file = std::move(moved);
  EXPECT_EQ(file.path(), path);
  ASSERT_EQ(file.tensors().size(), 4U);
  EXPECT_EQ(file.tensors()[0].name, "a");
  EXPECT_EQ(file.tensors()[1].name, "b");
  EXPECT_EQ(file.tensors()[2].name, "none");
  EXPECT_EQ(file.tensors()[3].name, "one");
  const SafetensorsTensor& b = file.tensor("b");
  EXPECT_EQ(b.dtype, "F32");
  EXPECT_EQ(b.shape, (std::vector<std::uint64_t>{2, 3}));
  ASSERT_EQ(b.data.size(), 24U);
  EXPECT_EQ(b.data[0], std::byte{4});
  EXPECT_EQ(file.tensor("one").data[0], std::byte{28});
  EXPECT_TRUE(file.tensor("none").data.empty());
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"format", "pt"}, {"note", "x \"y\""}}));
  EXPECT_EQ(file.find_tensor("c"), nullptr);
  try {
    file.tensor("c");
    ADD_FAILURE() << "a missing tensor was found";
  } catch (const Error& error) {
    EXPECT_EQ(error.what(), path + ": tensor 'c': is missing");
  }
}

TEST(Safetensors, ReadsAFileWithoutTensors) {
  EXPECT_TRUE(SafetensorsFile::parse(with_header("{}", 0), "empty").tensors().empty());
}

// A file with one tensor "t" of these fields and 8 bytes of data.
std::vector<std::byte> with_tensor(const std::string& fields) {
  return with_header(R"({"t":{)" + fields + "}}", 8);
}

// A file with tensors "t" and "u" of 4 bytes each and `data_bytes` bytes of data.
std::vector<std::byte> with_two(const std::string& first, const std::string& second, std::size_t data_bytes,
                                const std::string& second_name = "u") {
  const std::string fields = R"({"dtype":"F32","shape":[1],"data_offsets":)";
  return with_header(R"({"t":)" + fields + first + R"(},")" + second_name + R"(":)" + fields + second + "}}",
                     data_bytes);
}

TEST(Safetensors, RefusesBrokenHeaders) {
  constexpr std::uint64_t kMax64 = ~std::uint64_t{0};
  const std::vector<BrokenFile> files = {
      {"empty file", {}, "header length", "ends after 0 of 8 bytes"},
      {"7 bytes", std::vector<std::byte>(7), "header length", "ends after 7 of 8 bytes"},
      {"length 0", with_header(0, "{}", 0), "header length", "is 0"},
      {"length 2^64-1, which is -1 too", with_header(kMax64, "{}", 0), "header length",
       "18446744073709551615 bytes, 2 are left"},
      {"length 2^64-8", with_header(kMax64 - 7, "{}", 0), "header length",
       "18446744073709551608 bytes, 2 are left"},
      {"length one more than the file", with_header(3, "{}", 0), "header length", "3 bytes, 2 are left"},
      {"length 2^40", with_header(std::uint64_t{1} << 40, "{}", 0), "header length", "2 are left"},
      {"not JSON", with_header("{\"a\":}", 0), "header", "not JSON"},
      {"zero bytes", with_header(std::string(16, '\0'), 0), "header", "not JSON"},
      {"not UTF-8", with_header("{\"\xc3\x28\":1}", 0), "header", "not JSON"},
      {"nested very deep", with_header(std::string(100'000, '['), 0), "header", "not JSON"},
      {"an array", with_header("[]", 0), "header", "not a JSON object"},
      {"a number", with_header("12", 0), "header", "not a JSON object"},
      {"metadata a list", with_header(R"({"__metadata__":[]})", 0), "__metadata__", "not a JSON object"},
      {"metadata with a number", with_header(R"({"__metadata__":{"k":1}})", 0), "__metadata__",
       "'k' is not a string"},
      {"metadata twice", with_header(R"({"__metadata__":{},"__metadata__":{}})", 0), "__metadata__",
       "appears twice"},
      {"metadata key twice", with_header(R"({"__metadata__":{"k":"","k":""}})", 0), "__metadata__",
       "'k' appears twice"},
      {"bytes that belong to no tensor", with_two("[0,4]", "[4,8]", 9), "data",
       "1 bytes after the last tensor"},
      {"data without tensors", with_header("{}", 5), "data", "5 bytes after the last tensor"},
  };
  for (const BrokenFile& file : files) expect_refused<SafetensorsFile>(file);
}

TEST(Safetensors, RefusesBrokenTensors) {
  const std::string dtype = R"("dtype":"F32",)";
  const std::string shape = R"("shape":[2],)";
  const std::string good = dtype + shape;
  const auto of_shape = [&](const std::string& text) {
    return dtype + R"("data_offsets":[0,8],"shape":)" + text;
  };
  const std::vector<BrokenFile> files = {
      {"not an object", with_header(R"({"t":3})", 8), "tensor 't'", "is not a JSON object"},
      {"no dtype", with_tensor(shape + R"("data_offsets":[0,8])"), "tensor 't'", "dtype is missing"},
      {"no shape", with_tensor(dtype + R"("data_offsets":[0,8])"), "tensor 't'", "shape is missing"},
      {"no data_offsets", with_tensor(dtype + R"("shape":[2])"), "tensor 't'", "data_offsets is missing"},
      {"dtype twice", with_tensor(good + dtype + R"("data_offsets":[0,8])"), "tensor 't'",
       "dtype appears twice"},
      {"one data offset", with_tensor(good + R"("data_offsets":[8])"), "tensor 't'",
       "data_offsets has 1 numbers"},
      {"three data offsets", with_tensor(good + R"("data_offsets":[0,4,8])"), "tensor 't'",
       "data_offsets has 3 numbers"},
      {"data_offsets no list", with_tensor(good + R"("data_offsets":"08")"), "tensor 't'",
       "data_offsets is not an array"},
      {"data_offsets reversed", with_tensor(good + R"("data_offsets":[8,0])"), "tensor 't'",
       "[8, 0] are reversed"},
      {"data_offsets negative", with_tensor(good + R"("data_offsets":[-8,0])"), "tensor 't'",
       "data_offsets holds what is not a whole number"},
      {"data_offsets beyond the end", with_tensor(good + R"("data_offsets":[4,12])"), "tensor 't'",
       "data_offsets end at 12, beyond the file's 8"},
      {"data_offsets of 2^64-1", with_tensor(good + R"("data_offsets":[0,18446744073709551615])"),
       "tensor 't'", "data_offsets end at 18446744073709551615"},
      {"data_offsets of 2^64", with_tensor(good + R"("data_offsets":[0,18446744073709551616])"), "header",
       "not JSON"},
      {"overlap", with_two("[0,4]", "[2,6]", 6), "tensor 'u'", "data_offsets begin at 2, overlapping"},
      {"the same data twice", with_two("[0,4]", "[0,4]", 4), "tensor 'u'",
       "data_offsets begin at 0, overlapping"},
      {"hole", with_two("[0,4]", "[6,10]", 10), "tensor 'u'", "data_offsets begin at 6, with a hole"},
      {"hole at the start", with_two("[6,10]", "[2,6]", 10), "tensor 'u'",
       "data_offsets begin at 2, with a hole"},
      {"name twice", with_two("[0,4]", "[4,8]", 8, "t"), "tensor 't'", "appears twice"},
      {"shape too small", with_tensor(of_shape("[1]")), "tensor 't'",
       "shape needs 4 bytes, data_offsets span 8"},
      {"shape too large", with_tensor(of_shape("[3]")), "tensor 't'",
       "shape needs 12 bytes, data_offsets span 8"},
      {"shape 0", with_tensor(of_shape("[0]")), "tensor 't'", "shape needs 0 bytes"},
      {"shape overflows", with_tensor(of_shape("[4294967296,4294967296]")), "tensor 't'",
       "shape does not make"},
      {"shape -1", with_tensor(of_shape("[-1]")), "tensor 't'", "shape holds what is not a whole number"},
      {"shape 2.0", with_tensor(of_shape("[2.0]")), "tensor 't'", "shape holds what is not a whole number"},
      {"shape \"2\"", with_tensor(of_shape("[\"2\"]")), "tensor 't'",
       "shape holds what is not a whole number"},
      {"shape null", with_tensor(of_shape("null")), "tensor 't'", "shape is not an array"},
      {"unknown dtype", with_tensor(shape + R"("dtype":"F33","data_offsets":[0,8])"), "tensor 't'",
       "dtype 'F33' is unknown"},
      {"dtype no string", with_tensor(shape + R"("dtype":32,"data_offsets":[0,8])"), "tensor 't'",
       "dtype is not a string"},
      {"half a byte", with_tensor(R"("dtype":"F4","shape":[15],"data_offsets":[0,8])"), "tensor 't'",
       "shape does not make"},
      {"name with a line break", with_header(R"({"a\nb":{}})", 0), "tensor 'a\\x0ab'", "dtype is missing"},
  };
  for (const BrokenFile& file : files) expect_refused<SafetensorsFile>(file);
}

TEST(Safetensors, RefusesAHeaderOfMoreThan100Megabytes) {
  constexpr std::uint64_t kLength = 100'000'001;
  const TemporaryFolder folder;
  const std::string path = folder.write("large", with_header(kLength, "", 0));
  std::filesystem::resize_file(path, 8 + kLength);  // sparse: takes no space
  reset_largest_allocation();
  try {
    SafetensorsFile::open(path);
    ADD_FAILURE() << "the file was accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.what(), path + ": header length: 100000001 bytes, at most 100000000 are allowed");
  }
  EXPECT_LT(largest_allocation(), 1U << 20);
}

TEST(Safetensors, RefusesAFileCutOffAnywhere) {
  const std::vector<std::byte> bytes = with_header(kValidHeader, 29);
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    const auto end = bytes.begin() + static_cast<std::ptrdiff_t>(size);
    EXPECT_THROW(SafetensorsFile::parse({bytes.begin(), end}, "cut"), Error) << "after " << size << " bytes";
  }
}

TEST(Safetensors, FlippedBytesAreReadOrRefusedButNeverCrash) {
  flip_bytes(with_header(kValidHeader, 29), 20'000, [](std::vector<std::byte> bytes) {
    const SafetensorsFile file = SafetensorsFile::parse(std::move(bytes), "flipped");
    std::uint64_t sum = 0;
    for (const SafetensorsTensor& tensor : file.tensors()) {
      EXPECT_EQ(file.find_tensor(tensor.name), &tensor);
      for (const std::byte byte : tensor.data) sum += static_cast<std::uint64_t>(byte);
    }
    EXPECT_LE(sum, 255U * 29U);
  });
}

// --- Writing
// ----------------------------------------------------------------------------------------------------

const std::vector<float> kFloats = {1, 2.5F, -3, 4, 5, 6};
const std::vector<std::uint8_t> kSmall = {7, 8, 9};

std::vector<SafetensorsTensor> tensors_to_write() {
  return {{"small \"\u00e9\"", "U8", {3}, std::as_bytes(std::span(kSmall))},
          {"floats", "F32", {2, 3}, std::as_bytes(std::span(kFloats))},
          {"none", "BF16", {0}, {}}};
}

ErrorKind kind_of_failed_write(const std::string& path, const std::vector<SafetensorsTensor>& tensors) {
  try {
    write_safetensors(path, tensors);
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).rfind(path + ": ", 0), 0U) << error.what();
    return error.kind();
  }
  ADD_FAILURE() << path << " was written";
  return ErrorKind::kRuntime;
}

TEST(SafetensorsWriter, WritesWhatTheReaderReads) {
  const TemporaryFolder folder;
  const std::string path = folder.write("a.safetensors", std::vector<std::byte>(5));  // is replaced
  write_safetensors(path, tensors_to_write(), {{"model", "toy"}});
  EXPECT_EQ(folder.count(), 1U);
  const SafetensorsFile file = SafetensorsFile::open(path);
  EXPECT_EQ(file.metadata(), (std::map<std::string, std::string>{{"model", "toy"}}));
  ASSERT_EQ(file.tensors().size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    const SafetensorsTensor expected = tensors_to_write()[i];
    const SafetensorsTensor& tensor = file.tensors()[i];
    EXPECT_EQ(tensor.name, expected.name);
    EXPECT_EQ(tensor.dtype, expected.dtype);
    EXPECT_EQ(tensor.shape, expected.shape);
    EXPECT_TRUE(
        std::equal(tensor.data.begin(), tensor.data.end(), expected.data.begin(), expected.data.end()));
  }
  std::uint64_t header_bytes = 0;
  std::ifstream(path, std::ios::binary).read(reinterpret_cast<char*>(&header_bytes), sizeof header_bytes);
  EXPECT_EQ(header_bytes % 8, 0U);
}

TEST(SafetensorsWriter, RefusesTensorsThatMakeNoFile) {
  const TemporaryFolder folder;
  const std::string path = folder.file("a");
  const std::vector<SafetensorsTensor> broken = {
      {"short", "F32", {7}, std::as_bytes(std::span(kFloats))},
      {"long", "F32", {5}, std::as_bytes(std::span(kFloats))},
      {"unknown", "F33", {6}, std::as_bytes(std::span(kFloats))},
      {"__metadata__", "F32", {6}, std::as_bytes(std::span(kFloats))},
      {"\xff", "F32", {6}, std::as_bytes(std::span(kFloats))},
      {"floats", "F32", {6}, std::as_bytes(std::span(kFloats))},
  };
  for (const SafetensorsTensor& tensor : broken) {
    std::vector<SafetensorsTensor> tensors = tensors_to_write();
    tensors.push_back(tensor);
    EXPECT_EQ(kind_of_failed_write(path, tensors), ErrorKind::kInvalidArgument) << tensor.name;
  }
  EXPECT_EQ(folder.count(), 0U);
}

TEST(SafetensorsWriter, LeavesNothingBehindAndTheOldFileWholeWhenTheDiskIsFull) {
  const TemporaryFolder folder;
  const std::vector<std::byte> old(5, std::byte{1});
  const std::string path = folder.write("a", old);
  const std::vector<std::byte> large(1 << 20);
  // A limit on the size of files fails the write in the middle, as a full disk does.
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit old_limit = {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  rlimit limit = old_limit;
  limit.rlim_cur = 100'000;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  const ErrorKind kind = kind_of_failed_write(path, {{"large", "U8", {large.size()}, large}});
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &old_limit), 0);
  std::signal(SIGXFSZ, old_handler);
  EXPECT_EQ(kind, ErrorKind::kIo);
  EXPECT_EQ(folder.count(), 1U);
  EXPECT_EQ(std::filesystem::file_size(path), old.size());
}

TEST(SafetensorsWriter, RefusesPlacesThatCannotHoldAFile) {
  const TemporaryFolder folder;
  std::filesystem::create_directory(folder.file("folder"));
  EXPECT_EQ(kind_of_failed_write(folder.file("folder"), tensors_to_write()), ErrorKind::kIo);
  EXPECT_EQ(kind_of_failed_write(folder.file("missing/a"), tensors_to_write()), ErrorKind::kIo);
  const std::string pipe = folder.file("pipe");
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(kind_of_failed_write(pipe, tensors_to_write()), ErrorKind::kIo);
  EXPECT_EQ(folder.count(), 2U);
}

}  // namespace
}  // namespace kvasir
