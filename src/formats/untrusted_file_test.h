// What the tests of both readers share: how a broken file must be refused.
#ifndef KVASIR_FORMATS_UNTRUSTED_FILE_TEST_H_
#define KVASIR_FORMATS_UNTRUSTED_FILE_TEST_H_

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstddef>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kvasir/error.h"

namespace kvasir {

// The largest single allocation by operator new since the last reset, in bytes. (untrusted_file_test.cc
// counts.)
std::size_t largest_allocation();
void reset_largest_allocation();

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = testing::TempDir() + "kvasir-formats-XXXXXX";
    if (::mkdtemp(pattern.data()) == nullptr) throw Error(ErrorKind::kIo, pattern + ": cannot create");
    path_ = pattern;
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() { std::filesystem::remove_all(path_); }

  std::string file(const std::string& name) const { return path_ / name; }
  std::string write(const std::string& name, const std::vector<std::byte>& bytes) const {
    std::ofstream stream(file(name), std::ios::binary);
    stream.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    return file(name);
  }
  std::size_t count() const {
    return static_cast<std::size_t>(
        std::distance(std::filesystem::directory_iterator(path_), std::filesystem::directory_iterator()));
  }

 private:
  std::filesystem::path path_;
};

struct BrokenFile {
  std::string title;
  std::vector<std::byte> bytes;
  std::string where;    // the message names this field ...
  std::string problem;  // ... and says this of it
};

// `File::open` and `File::parse` refuse the file: one line with file and field, quickly and without much
// memory.
template <class File>
void expect_refused(const BrokenFile& broken) {
  SCOPED_TRACE(broken.title);
  const TemporaryFolder folder;
  const std::string path = folder.write("broken.bin", broken.bytes);
  for (const bool in_memory : {false, true}) {
    std::vector<std::byte> content = in_memory ? broken.bytes : std::vector<std::byte>();
    reset_largest_allocation();
    const std::clock_t start = std::clock();  // CPU time: the machine may be busy with other things
    try {
      in_memory ? File::parse(std::move(content), path) : File::open(path);
      ADD_FAILURE() << "the file was accepted";
    } catch (const Error& error) {
      const std::string message = error.what();
      EXPECT_EQ(error.kind(), ErrorKind::kFormat) << message;
      EXPECT_EQ(message.rfind(path + ": " + broken.where, 0), 0U) << message;
      EXPECT_NE(message.find(broken.problem), std::string::npos) << message;
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    }
    EXPECT_LT(std::clock() - start, CLOCKS_PER_SEC / 10);
    EXPECT_LT(largest_allocation(), 1U << 20);
  }
}

// Changes 1 to 4 bytes of `bytes` at random, `rounds` times, and calls use(changed), which returns or throws
// Error.
template <class Use>
void flip_bytes(const std::vector<std::byte>& bytes, int rounds, Use use) {
  constexpr std::uint64_t kSeed = 1601;
  std::mt19937_64 random(kSeed);
  int accepted = 0;
  int refused = 0;
  for (int round = 0; round < rounds; ++round) {
    std::vector<std::byte> changed = bytes;
    const std::uint64_t n_changes = 1 + random() % 4;
    for (std::uint64_t i = 0; i < n_changes; ++i) {
      std::byte& target = changed[random() % changed.size()];
      // One flipped bit, or one of the bytes at the borders of integers.
      const std::uint64_t kind = random() % 4;
      target = kind == 0   ? std::byte{0xff}
               : kind == 1 ? std::byte{0}
                           : target ^ std::byte(1U << (random() % 8));
    }
    try {
      use(std::move(changed));
      ++accepted;
    } catch (const Error& error) {
      ASSERT_EQ(error.kind(), ErrorKind::kFormat) << error.what();
      ASSERT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
      ++refused;
    }
  }
  std::cout << "seed " << kSeed << ": " << accepted << " accepted, " << refused << " refused\n";
  EXPECT_GT(accepted, rounds / 100);
  EXPECT_GT(refused, rounds / 100);
}

}  // namespace kvasir

#endif  // KVASIR_FORMATS_UNTRUSTED_FILE_TEST_H_
