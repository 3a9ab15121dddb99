// SHA-256, incrementally.
#ifndef KVASIR_BASE_SHA256_H_
#define KVASIR_BASE_SHA256_H_

#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace kvasir {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;
  void update(std::span<const std::byte> bytes);
  // The object is not used again after one of these.
  std::array<std::byte, 32> digest();
  std::string hex_digest();  // 64 lower-case digits

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvasir

#endif  // KVASIR_BASE_SHA256_H_
