#include "base/sha256.h"

#include <openssl/evp.h>

#include <array>

#include "kvasir/error.h"

namespace kvasir {
namespace {

void check(int result) {
  if (result != 1) throw Error(ErrorKind::kRuntime, "OpenSSL could not compute a SHA-256 hash");
}

struct FreeContext {
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
};

}  // namespace

struct Sha256::State {
  std::unique_ptr<EVP_MD_CTX, FreeContext> context{EVP_MD_CTX_new()};
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  check(state_->context != nullptr ? EVP_DigestInit_ex(state_->context.get(), EVP_sha256(), nullptr) : 0);
}
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::update(std::span<const std::byte> bytes) {
  check(EVP_DigestUpdate(state_->context.get(), bytes.data(), bytes.size()));
}

std::string Sha256::hex_digest() {
  std::array<unsigned char, 32> digest = {};
  check(EVP_DigestFinal_ex(state_->context.get(), digest.data(), nullptr));
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : digest) {
    text += kHex[byte >> 4];
    text += kHex[byte & 0xf];
  }
  return text;
}

}  // namespace kvasir
