#!/usr/bin/env python3
"""Writes src/text/unicode_additions.inc: what Unicode 16 calls letters or numbers and Unicode 14 (PCRE2 10.42) does not.

Run with Python 3.11 (its unicodedata is Unicode 14) and the package unicodedata2 16.0.0:
    python3.11 -m pip install unicodedata2==16.0.0
    python3.11 script/unicode_table.py > src/text/unicode_additions.inc
"""

import unicodedata

import unicodedata2

COLUMNS = 110


def ranges(code_points):
    result = []
    for c in code_points:
        if result and result[-1][1] == c - 1:
            result[-1][1] = c
        else:
            result.append([c, c])
    return result


def additions(category):
    """Code points that have entered a general category (L or N) since Unicode 14."""

    def members(data):
        return {c for c in range(0x110000) if data.category(chr(c)).startswith(category)}

    old, new = members(unicodedata), members(unicodedata2)
    assert not old - new, "a code point left the category: adding is not enough any more"
    return sorted(new - old)


def constant(name, comment, code_points):
    items = []
    for first, last in ranges(code_points):
        items.append(f"\\\\x{{{first:X}}}" + (f"-\\\\x{{{last:X}}}" if last != first else ""))
    lines, line = [], ""
    for item in items:
        if len(line) + len(item) + 7 > COLUMNS:
            lines.append(line)
            line = ""
        line += item
    lines.append(line)
    body = "\n".join(f'    "{text}"' for text in lines)
    return f"// {comment}: {len(code_points)} code points.\ninline constexpr std::string_view {name} =\n{body};\n"


def main():
    assert unicodedata.unidata_version == "14.0.0", unicodedata.unidata_version
    assert unicodedata2.unidata_version == "16.0.0", unicodedata2.unidata_version
    print("// Made by `python3.11 script/unicode_table.py > src/text/unicode_additions.inc`; do not edit.")
    print("// Contents of a PCRE2 character class: what Unicode 16 has and Unicode 14 has not.")
    print()
    print(constant("kNewLetters", r"\p{L}", additions("L")))
    print(constant("kNewNumbers", r"\p{N}", additions("N")), end="")


if __name__ == "__main__":
    main()
