"""Kvasir and llama.cpp in turn, repetition by repetition, on the same model file, threads and work.

Rows: ppN is the prefill of N tokens, tgN the decoding of N tokens one after another; @D after D positions that are in
the cache already; xB with B sequences together; +busy while another process spins on every core; load is the time from
opening the file to the logits of a first token. Ratios above 1 are in Kvasir's favour.
"""

import argparse
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
MODELS = ROOT / "build/peers/models"
KVASIR = ROOT / "build/release/kvasir"
DEFAULT_ROWS = "pp512,tg128,tg32@4096,tg64x8,tg64x32,tg64+busy,load"


@dataclass(frozen=True)
class Row:
    name: str
    kind: str  # "pp", "tg" or "load"
    tokens: int = 1
    depth: int = 0
    batch: int = 1
    busy: bool = False


def parse_row(name):
    if name == "load":
        return Row(name, "load")
    match = re.fullmatch(r"(pp|tg)([1-9]\d*)(?:@(\d+))?(?:x([1-9]\d*))?(\+busy)?", name)
    if not match or (match[1] == "pp" and match[4]):
        raise argparse.ArgumentTypeError(f'"{name}" is no row such as pp512, tg128@4096, tg64x8, tg64+busy or load')
    kind, tokens, depth, batch, busy = match.groups()
    return Row(name, kind, int(tokens), int(depth or 0), int(batch or 1), bool(busy))


class Ours:
    """One kvasir bench for each row: it waits for its turn before each repetition."""

    def __init__(self, model, row, threads, repetitions):
        prefill, decode = (row.tokens, 0) if row.kind == "pp" else (0, row.tokens)
        self.process = start(KVASIR, "bench", "-m", model, "-p", prefill, "-n", decode, "-d", row.depth, "-b",
                             row.batch, "-t", threads, "-r", repetitions, "--take-turns", "--json", stderr=subprocess.PIPE)
        self.wait_ready()

    def wait_ready(self):
        line = self.process.stderr.readline()
        if line not in ("ready\n", ""):
            sys.exit(f"compare: {line.strip()}")

    def measure(self):
        print(file=self.process.stdin, flush=True)
        self.wait_ready()

    def report(self):
        (row,) = json.load(self.process.stdout)["rows"]
        self.process.wait()
        return row


class Theirs:
    """One llama.cpp for each model."""

    def __init__(self, model, threads):
        self.process = start(sys.executable, HERE / "llama_worker.py", model, threads)
        self.first_token_seconds = self.answer()["first_token_seconds"]

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit("compare: llama.cpp's process has ended")
        return json.loads(line)

    def measure(self, row, threads):
        prefill, decode = (row.tokens, 0) if row.kind == "pp" else (0, row.tokens)
        request = {"prefill": prefill, "decode": decode, "depth": row.depth, "batch": row.batch, "threads": threads}
        print(json.dumps(request), file=self.process.stdin, flush=True)
        return self.answer()["seconds"]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def start(*command, stderr=None):
    return subprocess.Popen([str(word) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                            stderr=stderr, text=True)


@contextlib.contextmanager
def busy_neighbours(count):
    spinners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for spinner in spinners:
            spinner.kill()
            spinner.wait()


def run_row(model, row, threads, repetitions, theirs):
    ours = Ours(model, row, threads, repetitions)
    theirs.measure(row, threads)  # makes its cache; not counted
    seconds = []
    with busy_neighbours(len(os.sched_getaffinity(0)) if row.busy else 0):
        for i in range(repetitions):
            if i % 2 == 1:
                seconds.append(theirs.measure(row, threads))
            ours.measure()
            if i % 2 == 0:
                seconds.append(theirs.measure(row, threads))
    report = ours.report()
    tokens = row.tokens * row.batch
    return {
        "unit": "tokens/s",
        "ours": [tokens / time for time in report["seconds"]],
        "theirs": [tokens / time for time in seconds],
        "read_share": report["read_share"],
        "operations_share": report["operations_share"],
    }


def run_load(model, threads, repetitions):
    ours, theirs = [], []
    for _ in range(repetitions):
        command = [KVASIR, "bench", "-m", model, "-p", 1, "-n", 0, "-r", 1, "-t", threads, "--json"]
        done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, check=True)
        ours.append(json.loads(done.stdout)["first_token_seconds"])
        worker = Theirs(model, threads)
        theirs.append(worker.first_token_seconds)
        worker.close()
    return {"unit": "s", "ours": ours, "theirs": theirs, "read_share": None, "operations_share": None}


def run_model(model, options):
    """Yields a result for each row and number of threads."""
    theirs = Theirs(model, max(options.threads))
    for row in options.rows:
        for threads in options.threads:
            print(f"compare: {model.stem} {row.name} t={threads}", file=sys.stderr)
            if row.kind == "load":
                result = run_load(model, threads, options.repetitions)
            else:
                result = run_row(model, row, threads, options.repetitions, theirs)
            ours, peer = statistics.median(result["ours"]), statistics.median(result["theirs"])
            ratio = peer / ours if row.kind == "load" else ours / peer
            yield {"model": model.stem, "row": row.name, "threads": threads, "ours_median": ours,
                   "theirs_median": peer, "ratio": ratio, **result}
    theirs.close()


def number(value):
    return f"{value:.3g}" if value < 99.95 else f"{value:.0f}"


def spread(values):
    return f"{number(statistics.median(values))} ({number(min(values))} to {number(max(values))})"


def markdown(results):
    lines = [["model", "row", "threads", "Kvasir", "llama.cpp", "ratio", "of read peak", "of arithmetic peak"]]
    for result in results:
        shares = [f"{share:.0%}" if share is not None else "" for share in
                  (result["read_share"], result["operations_share"])]
        unit = " s" if result["unit"] == "s" else ""
        lines.append([result["model"], result["row"], str(result["threads"]), spread(result["ours"]) + unit,
                      spread(result["theirs"]) + unit, f"{result['ratio']:.2f}", *shares])
    widths = [max(map(len, column)) for column in zip(*lines)]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join("| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in lines)


def model_path(name):
    for path in (MODELS / f"{name}.gguf", Path(name)):
        if path.is_file():
            return path
    raise argparse.ArgumentTypeError(f"no model {name}: neither a file nor one of build/peers/models")


def comma_list(parse):
    def parse_all(text):
        return [parse(part) for part in text.split(",")]
    return parse_all


def main():
    parser = argparse.ArgumentParser(prog="compare", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=comma_list(model_path), default=sorted(MODELS.glob("*.gguf")),
                        help="names in build/peers/models, or files (default: all there)")
    parser.add_argument("--rows", type=comma_list(parse_row), default=comma_list(parse_row)(DEFAULT_ROWS),
                        help=f"default: {DEFAULT_ROWS}")
    parser.add_argument("-t", "--threads", type=comma_list(int), default=[1, 2])
    parser.add_argument("-r", "--repetitions", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    options = parser.parse_args()
    if options.repetitions < 1 or min(options.threads) < 1:
        parser.error("repetitions and threads must be at least 1")

    results = [result for model in options.models for result in run_model(model, options)]
    print(json.dumps(results) if options.json else markdown(results))


if __name__ == "__main__":
    main()
