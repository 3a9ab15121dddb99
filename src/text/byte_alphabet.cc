#include "text/byte_alphabet.h"

#include <array>
#include <cstdint>

namespace kvasir {
namespace {

// All characters of the alphabet lie below this code point.
constexpr std::size_t kAlphabetEnd = 256 + 68;

struct Alphabet {
  std::array<std::uint16_t, 256> character{};     // of each byte
  std::array<std::int16_t, kAlphabetEnd> byte{};  // of each code point; -1 for none

  // OpenAI, GPT-2, encoder.py, bytes_to_unicode: printable Latin-1 stands for itself, the other bytes take
  // the code points from 256 on, in order.
  constexpr Alphabet() {
    byte.fill(-1);
    std::uint16_t next = 256;
    for (std::uint16_t b = 0; b < 256; ++b) {
      const bool printable = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xFF && b != 0xAD);
      character[b] = printable ? b : next++;
      byte[character[b]] = static_cast<std::int16_t>(b);
    }
  }
};
constexpr Alphabet kAlphabet;

}  // namespace

std::string to_byte_alphabet(std::string_view bytes) {
  std::string spelling;
  for (const char c : bytes) {
    const std::uint16_t character = kAlphabet.character[static_cast<unsigned char>(c)];
    if (character < 0x80) {
      spelling += static_cast<char>(character);
    } else {  // two bytes of UTF-8: the alphabet ends below U+0800
      spelling += static_cast<char>(0xC0 | character >> 6);
      spelling += static_cast<char>(0x80 | (character & 0x3F));
    }
  }
  return spelling;
}

std::optional<std::string> from_byte_alphabet(std::string_view spelling) {
  std::string bytes;
  for (std::size_t i = 0; i < spelling.size(); ++i) {
    std::size_t character = static_cast<unsigned char>(spelling[i]);
    if (character >= 0x80) {
      if ((character & 0xE0) != 0xC0 || i + 1 == spelling.size()) return std::nullopt;
      const auto second = static_cast<unsigned char>(spelling[++i]);
      if ((second & 0xC0) != 0x80) return std::nullopt;
      character = (character & 0x1F) << 6 | (second & 0x3F);
      if (character < 0x80) return std::nullopt;
    }
    if (character >= kAlphabetEnd || kAlphabet.byte[character] < 0) return std::nullopt;
    bytes += static_cast<char>(kAlphabet.byte[character]);
  }
  return bytes;
}

}  // namespace kvasir
