// GPT-2's byte alphabet: a printable character for each of the 256 bytes, in which vocabularies spell their
// tokens.
#ifndef KVASIR_TEXT_BYTE_ALPHABET_H_
#define KVASIR_TEXT_BYTE_ALPHABET_H_

#include <optional>
#include <string>
#include <string_view>

namespace kvasir {

std::string to_byte_alphabet(std::string_view bytes);
// nullopt if the spelling holds a character that is not in the alphabet.
std::optional<std::string> from_byte_alphabet(std::string_view spelling);

}  // namespace kvasir

#endif  // KVASIR_TEXT_BYTE_ALPHABET_H_
