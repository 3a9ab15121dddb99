#include "base/mapped_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string_view>
#include <utility>

#include "kvasir/error.h"

namespace kvasir {
namespace {

class MappedFileTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "kvasir-mapped-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string write(const std::string& name, std::string_view text) {
    const std::string path = folder_ / name;
    std::ofstream(path, std::ios::binary) << text;
    return path;
  }

  std::filesystem::path folder_;
};

std::string_view text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

ErrorKind kind_of_failure(const std::string& path) {
  try {
    MappedFile::open(path);
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(path), std::string::npos) << error.what();
    return error.kind();
  }
  ADD_FAILURE() << path << " was opened";
  return ErrorKind::kRuntime;
}

TEST_F(MappedFileTest, ShowsTheBytesOfTheFile) {
  const std::string text(10'000, 'x');
  EXPECT_EQ(text_of(MappedFile::open(write("a", text + "end"))), text + "end");
}

TEST_F(MappedFileTest, AnEmptyFileMapsToNoBytes) {
  EXPECT_TRUE(MappedFile::open(write("empty", "")).bytes().empty());
}

TEST_F(MappedFileTest, MovesKeepTheMapAlive) {
  MappedFile a = MappedFile::open(write("a", "first"));
  MappedFile b = MappedFile::open(write("b", "second"));
  a = std::move(b);
  const MappedFile c(std::move(a));
  EXPECT_EQ(text_of(c), "second");
  EXPECT_EQ(a.bytes().data(), nullptr);  // or the map would be removed twice
}

TEST_F(MappedFileTest, RefusesWhatIsNoRegularFile) {
  EXPECT_EQ(kind_of_failure(folder_ / "missing"), ErrorKind::kIo);
  EXPECT_EQ(kind_of_failure(folder_), ErrorKind::kIo);
  EXPECT_EQ(kind_of_failure("/dev/null"), ErrorKind::kIo);
  const std::string pipe = folder_ / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_EQ(kind_of_failure(pipe), ErrorKind::kIo);
}

}  // namespace
}  // namespace kvasir
