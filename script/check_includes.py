#!/usr/bin/env python3
"""Fails if a file includes a room that its own room may not look into.

Rooms are the folders of src/; a public header belongs to the room that implements it. docs/architecture.md draws the
same picture.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent

# room: rooms that it may include, besides itself and the public types below.
ALLOWED = {
    "base": set(),
    "kernels": {"base"},
    "formats": {"base"},
    "text": {"base", "formats"},
    "sampling": {"base"},
    "cache": {"base", "kernels"},
    "model": {"base", "kernels", "formats", "cache"},
    "engine": {"base", "kernels", "formats", "cache", "model", "text", "sampling"},
    "study": {"base", "kernels", "formats", "cache", "model", "text", "sampling", "engine"},
}
EVERYTHING = set(ALLOWED)

# Public headers by room. "types" are plain declarations that every room may use.
PUBLIC = {
    "error": "types", "token": "types", "config": "types", "observer": "types", "function_ref": "types",
    "kv_cache": "cache", "paged_kv_cache": "cache",
    "executor": "model", "layers": "model", "model": "model",
    "tokenizer": "text", "chat": "text", "stop_matcher": "text",
    "sampling": "sampling",
    "engine": "engine", "sequence_runner": "engine", "generate": "engine", "language_model": "engine", "lab": "engine",
    "perplexity": "engine", "bench": "engine", "verify": "engine", "version": "engine",
    "study": "study",
}
INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.M)


def room_of_include(path: str) -> str | None:
    """The room of an included file; None for a file of the including folder."""
    first, _, rest = path.partition("/")
    if first == "kvasir":
        return PUBLIC[rest.removesuffix(".h")]
    return first if first in ALLOWED else None


def room_of_file(path: pathlib.Path) -> str:
    parts = path.relative_to(ROOT).parts
    if parts[0] == "src":
        return parts[1]
    if parts[0] == "include":
        return PUBLIC[path.stem]
    return "top"  # apps, tests, python: may include everything


def main() -> int:
    problems, files = [], 0
    for folder in ("src", "include", "apps", "tests", "python"):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix not in (".h", ".cc"):
                continue
            files += 1
            try:
                room = room_of_file(path)
                allowed = EVERYTHING if room == "top" else ALLOWED.get(room, set()) | {room}
                for target in INCLUDE.findall(path.read_text()):
                    other = room_of_include(target)
                    if other not in allowed | {"types", None}:
                        problems.append(f"{path.relative_to(ROOT)}: {room} must not include {target} ({other})")
            except KeyError as header:
                problems.append(f"{path.relative_to(ROOT)}: public header {header} has no room in check_includes.py")
    for problem in problems:
        print(problem, file=sys.stderr)
    if files < 50:
        problems.append("too few files were looked at")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
