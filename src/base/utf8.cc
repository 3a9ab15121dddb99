#include "base/utf8.h"

#include <cstdint>

namespace kvasir {
namespace {

struct Sequence {
  std::size_t
      bytes;  // how many bytes are good: the whole character or the maximal ill-formed subpart (at least 1)
  bool well_formed;
  bool cut;  // not well-formed only because the text ends here
};

bool is_between(unsigned char byte, unsigned char low, unsigned char high) {
  return byte >= low && byte <= high;
}

// The character, or the maximal subpart of one, that the text (not empty) begins with: Unicode 15, table 3-7.
Sequence first_sequence(std::string_view text) {
  const auto byte = [text](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  if (lead < 0x80) return {1, true, false};
  std::size_t length = 0;
  unsigned char low = 0x80, high = 0xBF;  // range of the second byte; the third and fourth are always 80..BF
  if (is_between(lead, 0xC2, 0xDF)) {
    length = 2;
  } else if (is_between(lead, 0xE0, 0xEF)) {
    length = 3;
    if (lead == 0xE0) low = 0xA0;   // shorter forms exist
    if (lead == 0xED) high = 0x9F;  // surrogates
  } else if (is_between(lead, 0xF0, 0xF4)) {
    length = 4;
    if (lead == 0xF0) low = 0x90;   // shorter forms exist
    if (lead == 0xF4) high = 0x8F;  // above U+10FFFF
  } else {
    return {1, false, false};
  }
  for (std::size_t i = 1; i < length; ++i) {
    if (i == text.size()) return {i, false, true};
    if (!is_between(byte(i), low, high)) return {i, false, false};
    low = 0x80, high = 0xBF;
  }
  return {length, true, false};
}

// Where the first byte at or after `from` lies that is not ASCII. Eight at a time: most text is ASCII.
std::size_t skip_ascii(std::string_view text, std::size_t from) {
  while (from + 8 <= text.size()) {
    std::uint64_t word;
    __builtin_memcpy(&word, text.data() + from, 8);
    if (word & 0x8080808080808080U) break;
    from += 8;
  }
  while (from < text.size() && static_cast<unsigned char>(text[from]) < 0x80) ++from;
  return from;
}

}  // namespace

bool is_valid_utf8(std::string_view bytes) {
  for (std::size_t i = skip_ascii(bytes, 0); i < bytes.size(); i = skip_ascii(bytes, i)) {
    const Sequence sequence = first_sequence(bytes.substr(i));
    if (!sequence.well_formed) return false;
    i += sequence.bytes;
  }
  return true;
}

std::string replace_invalid_utf8(std::string_view bytes) {
  std::string result;
  result.reserve(bytes.size());
  std::size_t copied = 0;  // bytes before this are in the result
  for (std::size_t i = skip_ascii(bytes, 0); i < bytes.size(); i = skip_ascii(bytes, i)) {
    const Sequence sequence = first_sequence(bytes.substr(i));
    if (!sequence.well_formed) {
      result.append(bytes.substr(copied, i - copied)).append("\xEF\xBF\xBD");
      copied = i + sequence.bytes;
    }
    i += sequence.bytes;
  }
  return result.append(bytes.substr(copied));
}

std::size_t complete_utf8_prefix(std::string_view bytes) {
  // A character that is cut is at most three bytes, and its lead byte is the last byte here that is no
  // continuation.
  for (std::size_t back = 1; back <= 3 && back <= bytes.size(); ++back) {
    const std::string_view tail = bytes.substr(bytes.size() - back);
    if (is_between(static_cast<unsigned char>(tail[0]), 0x80, 0xBF)) continue;
    const Sequence sequence = first_sequence(tail);
    return sequence.cut && sequence.bytes == back ? bytes.size() - back : bytes.size();
  }
  return bytes.size();
}

}  // namespace kvasir
