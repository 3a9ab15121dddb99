#include "base/sha256.h"

#include <gtest/gtest.h>

#include <string_view>

namespace kvasir {
namespace {

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

std::string hash(std::string_view text) {
  Sha256 sha;
  sha.update(bytes_of(text));
  return sha.hex_digest();
}

// The examples of FIPS 180-2, appendix B, and the hash of nothing.
TEST(Sha256, GivesThePublishedExamples) {
  EXPECT_EQ(Sha256().hex_digest(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hash(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hash("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hash("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hash(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, TheCutOfTheInputDoesNotMatter) {
  const std::string text(200, 'k');
  for (std::size_t cut = 0; cut <= text.size(); ++cut) {
    Sha256 sha;
    sha.update(bytes_of(std::string_view(text).substr(0, cut)));
    sha.update(bytes_of(std::string_view(text).substr(cut)));
    ASSERT_EQ(sha.hex_digest(), hash(text)) << "cut at " << cut;
  }
}

TEST(Sha256, CanBeMoved) {
  Sha256 first;
  first.update(bytes_of("ab"));
  Sha256 second(std::move(first));
  second.update(bytes_of("c"));
  EXPECT_EQ(second.hex_digest(), hash("abc"));
}

}  // namespace
}  // namespace kvasir
