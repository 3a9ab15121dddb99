#include "base/sha256.h"

#include <openssl/evp.h>

#include <string_view>

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

std::array<std::byte, 32> Sha256::digest() {
  std::array<std::byte, 32> digest = {};
  check(EVP_DigestFinal_ex(state_->context.get(), reinterpret_cast<unsigned char*>(digest.data()), nullptr));
  return digest;
}

std::string Sha256::hex_digest() {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string text;
  for (const std::byte byte : digest()) {
    text += kHex[std::to_integer<std::size_t>(byte >> 4)];
    text += kHex[std::to_integer<std::size_t>(byte & std::byte{0xf})];
  }
  return text;
}

}  // namespace kvasir
