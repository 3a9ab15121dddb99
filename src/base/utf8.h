// UTF-8, as Unicode 15 section 3.9 defines it (no surrogates, nothing above U+10FFFF, shortest forms only).
#ifndef KVASIR_BASE_UTF8_H_
#define KVASIR_BASE_UTF8_H_

#include <cstddef>
#include <string>
#include <string_view>

namespace kvasir {

bool is_valid_utf8(std::string_view bytes);

// Bytes as valid UTF-8: each maximal ill-formed subpart becomes one U+FFFD ("substitution of maximal
// subparts").
std::string replace_invalid_utf8(std::string_view bytes);

// Length of the longest prefix that does not end inside a character which further bytes could still complete.
// Ill-formed bytes before that point count as complete (they can never become a character).
std::size_t complete_utf8_prefix(std::string_view bytes);

}  // namespace kvasir

#endif  // KVASIR_BASE_UTF8_H_
