#!/usr/bin/env python3
"""Writes splits.jsonl: how the published splitting patterns cut random and nasty texts.

The answer comes from Hugging Face tokenizers (Oniguruma, Unicode 16); the package `regex` must agree on every line.
    python3.11 -m pip install tokenizers==0.23.3 regex==2026.11.19 unicodedata2==16.0.0
    python3.11 tests/data/pretokenizer/make_splits.py > tests/data/pretokenizer/splits.jsonl
A line: text, and for each pattern the ends of its pieces, in bytes of UTF-8.
"""

import json
import random

import regex
import unicodedata2
from tokenizers import Regex
from tokenizers.pre_tokenizers import Digits, Sequence, Split

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
STAGES = {"smollm": [r"\p{N}", GPT2], "gpt-2": [GPT2], "llama-bpe": [LLAMA3], "qwen2": [QWEN2]}


def hf_splitter(name):
    if name == "smollm":
        return Sequence([Digits(individual_digits=True), Split(Regex(GPT2), "isolated")])
    return Split(Regex(STAGES[name][0]), "isolated")


def regex_pieces(name, text):
    parts = [text] if text else []
    for stage in STAGES[name]:
        pieces = []
        for part in parts:
            at = 0
            for match in regex.finditer(stage, part):
                pieces += [part[at : match.start()], match.group()]
                at = match.end()
            pieces.append(part[at:])
        parts = [piece for piece in pieces if piece]
    return parts


NASTY = [
    "",
    "a  b",
    "x \r\n\r\n  y",
    "12345678",
    "IT'S we'LL",
    "a\tb",
    "def f():\n    return  x",
    "e\u0301x",
    "\u0966\u0967\u0968\u0969",
    "'\u017f 'S 's '\u212a",
    "it\u2019s",
    "a\u180eb \u180e\u180e c",
    "a\u0085b\u00a0c\u2028d\u3000e\u200bf\ufeffg",
    "\x1c\x1d\x1e\x1f \x1f",
    " \n \n\n  \t\r\n x",
    "\r\r\n\n!\r\n\r\n",
    "!!!\n\n\n???",
    " !\r\n a",
    "\u00bd\u2460\u2167\u0be7\U0001d7d8",
    "\U00031350\U0002ebf0x",
    "\u1c89\u1c8aa",
    "\U00010d40\U00010d411",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1eb\U0001f1f7",
    "\uffff\ufffe\U0010ffff",
    "''''s's'sss",
    "'re're'RE're",
    "can't've'd",
    "'",
    " '",
    " 's",
    "  's",
    "a 1 2  3   4",
    "1a2b3c  12,345.67",
    "\u0915\u094d\u0937 \u0e01\u0e33\u0e19",
    "\u3042\u3044\u3001\u6f22\u5b57\u3002",
    "\u0645\u0631\u062d\u0628\u0627\u061f",
    "_____----====",
    "\t\t\tif (x) {\n\t\t}\n",
    "<|im_start|>user\n",
    "http://a.b/c?d=e&f=1",
    "\u0000\u0001\u007f",
]


def random_texts(rng):
    assigned = [
        chr(c)
        for c in range(0x110000)
        if unicodedata2.category(chr(c)) not in ("Cn", "Cs", "Co")  # of Unicode 16: later ones differ in `regex`
    ]
    by_class = {}
    for c in assigned:
        by_class.setdefault(unicodedata2.category(c)[0], []).append(c)
    spaces = [c for c in assigned if regex.match(r"\p{White_Space}", c)]
    ascii_words = "the The I'm don't WE'LL x1 42 2026 foo_bar e.g. \u00e9t\u00e9 na\u00efve".split()
    for kind in range(560):
        parts = []
        for _ in range(rng.randint(1, 12)):
            choice = rng.randrange(8)
            if choice == 0:
                parts.append(rng.choice(ascii_words))
            elif choice == 1:
                parts.append(" " * rng.randint(1, 4))
            elif choice == 2:
                parts.append("".join(rng.choice("\r\n\t \u3000") for _ in range(rng.randint(1, 5))))
            elif choice == 3:
                parts.append("".join(rng.choice(spaces) for _ in range(rng.randint(1, 3))))
            elif choice == 4:
                parts.append("".join(chr(rng.randrange(128)) for _ in range(rng.randint(1, 8))))
            elif choice == 5:
                members = by_class[rng.choice("LNMPSZC")]
                parts.append("".join(rng.choice(members) for _ in range(rng.randint(1, 4))))
            elif choice == 6:
                parts.append("".join(rng.choice(assigned) for _ in range(rng.randint(1, 3))))
            else:
                parts.append(rng.choice(["'s", "'T", "'re", "'VE", "'m", "'Ll", "'d", "'\u017f", "\u2019s"]))
        yield "".join(parts)


def main():
    rng = random.Random(20261130)
    splitters = {name: hf_splitter(name) for name in STAGES}
    for text in NASTY + list(random_texts(rng)):
        line = {"text": text}
        for name, splitter in splitters.items():
            pieces = [text[begin:end] for _, (begin, end) in splitter.pre_tokenize_str(text)]
            assert "".join(pieces) == text, (name, text)
            if pieces != regex_pieces(name, text):
                raise SystemExit(f"{name} disagrees: {ascii(text)} {ascii(pieces)} {ascii(regex_pieces(name, text))}")
            ends, at = [], 0
            for piece in pieces:
                at += len(piece.encode())
                ends.append(at)
            line[name] = ends
        print(json.dumps(line, separators=(",", ":")))


if __name__ == "__main__":
    main()
