"""Kvasir and its peers in turn, repetition by repetition, on the same model file, threads and work.

Rows: ppN is the prefill of N tokens, tgN the decoding of N tokens one after another; @D after D positions that are in
the cache already; xB with B sequences together; +busy while another process spins on every core; rqP+NxB is B requests
at once, of P prompt and N new tokens each, to Kvasir's engine; load is the time from opening the file to the logits of
a first token. Ratios above 1 are in Kvasir's favour.
"""

import argparse
import contextlib
import functools
import importlib.util
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
OURS = "Kvasir"
PEERS = {"llama.cpp": "llama_worker.py", "torch": "torch_worker.py"}
DEFAULT_ROWS = "pp512,tg128,tg32@4096,tg64x8,tg64x32,tg64+busy,load"


@dataclass(frozen=True)
class Row:
    name: str
    kind: str  # "pp", "tg", "rq" or "load"
    prefill: int = 0
    decode: int = 0
    depth: int = 0
    batch: int = 1
    busy: bool = False

    @property
    def tokens(self):
        return (self.prefill + self.decode) * self.batch


def parse_row(name):
    if name == "load":
        return Row(name, "load")
    requests = re.fullmatch(r"rq([1-9]\d*)\+([1-9]\d*)x([1-9]\d*)", name)
    if requests:
        prefill, decode, batch = map(int, requests.groups())
        return Row(name, "rq", prefill, decode, batch=batch)
    match = re.fullmatch(r"(pp|tg)([1-9]\d*)(?:@(\d+))?(?:x([1-9]\d*))?(\+busy)?", name)
    if not match or (match[1] == "pp" and match[4]):
        raise argparse.ArgumentTypeError(f'"{name}" is no row such as pp512, tg128@4096, tg64x8, tg64+busy, '
                                         "rq128+64x8 or load")
    kind, tokens, depth, batch, busy = match.groups()
    prefill, decode = (int(tokens), 0) if kind == "pp" else (0, int(tokens))
    return Row(name, kind, prefill, decode, int(depth or 0), int(batch or 1), bool(busy))


class Ours:
    """One kvasir bench for each row: it waits for its turn before each repetition."""

    def __init__(self, model, row, threads, repetitions):
        if row.kind == "rq":
            work = ["-p", 0, "-n", 0, "-R", row.batch, "--request-prompt", row.prefill, "--request-new", row.decode]
        else:
            work = ["-p", row.prefill, "-n", row.decode, "-d", row.depth, "-b", row.batch]
        self.process = start(KVASIR, "bench", "-m", model, *work, "-t", threads, "-r", repetitions, "--take-turns",
                             "--json", stderr=subprocess.PIPE)
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


class Peer:
    """Another engine on one model: a worker in a process of its own, in the protocol of worker.py."""

    def __init__(self, name, model, threads):
        self.name = name
        self.process = start(sys.executable, HERE / PEERS[name], model, threads)
        answer = self.answer()
        self.refused = answer.get("refused")
        self.first_token_seconds = answer.get("first_token_seconds")

    def answer(self):
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"compare: the process of {self.name} has ended")
        return json.loads(line)

    def measure(self, row, threads):
        request = {"prefill": row.prefill, "decode": row.decode, "depth": row.depth, "batch": row.batch,
                   "threads": threads}
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


def take_turns(measures, repetitions):
    """What each engine's function returns in each repetition; who goes first in one goes last in the next."""
    names = list(measures)
    values = {name: [] for name in names}
    for i in range(repetitions):
        first = i % len(names)
        for name in names[first:] + names[:first]:
            values[name].append(measures[name]())
    return values


def run_row(model, row, threads, repetitions, peers):
    ours = Ours(model, row, threads, repetitions)
    measures = {OURS: ours.measure} | {peer.name: functools.partial(peer.measure, row, threads) for peer in peers}
    for peer in peers:
        peer.measure(row, threads)  # makes its cache; not counted
    with busy_neighbours(len(os.sched_getaffinity(0)) if row.busy else 0):
        seconds = take_turns(measures, repetitions)
    report = ours.report()
    seconds[OURS] = report["seconds"]
    return {
        "unit": "tokens/s",
        "values": {name: [row.tokens / time for time in times] for name, times in seconds.items()},
        "read_share": report["read_share"],
        "operations_share": report["operations_share"],
    }


def our_first_token_seconds(model, threads):
    command = [KVASIR, "bench", "-m", model, "-p", 1, "-n", 0, "-r", 1, "-t", threads, "--json"]
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)["first_token_seconds"]


def their_first_token_seconds(name, model, threads):
    peer = Peer(name, model, threads)
    peer.close()
    return peer.first_token_seconds


def run_load(model, threads, repetitions, peers):
    measures = {OURS: functools.partial(our_first_token_seconds, model, threads)}
    for peer in peers:
        measures[peer.name] = functools.partial(their_first_token_seconds, peer.name, model, threads)
    return {"unit": "s", "values": take_turns(measures, repetitions), "read_share": None, "operations_share": None}


def start_peers(names, model, threads):
    """Those that run the model."""
    peers = []
    for name in names:
        peer = Peer(name, model, threads)
        if peer.refused:
            print(f"compare: {model.stem} without {name}: {peer.refused}", file=sys.stderr)
            peer.close()
        else:
            peers.append(peer)
    return peers


def run_model(model, options):
    """Yields a result for each row and number of threads."""
    peers = start_peers(options.peers, model, max(options.threads))
    for row in options.rows:
        for threads in options.threads:
            print(f"compare: {model.stem} {row.name} t={threads}", file=sys.stderr)
            if row.kind == "load":
                result = run_load(model, threads, options.repetitions, peers)
            else:
                result = run_row(model, row, threads, options.repetitions, peers)
            medians = {name: statistics.median(values) for name, values in result["values"].items()}
            ratios = {peer.name: medians[OURS] / medians[peer.name] for peer in peers}
            if row.kind == "load":
                ratios = {name: 1 / ratio for name, ratio in ratios.items()}
            yield {"model": model.stem, "row": row.name, "threads": threads, "medians": medians, "ratios": ratios,
                   **result}
    for peer in peers:
        peer.close()


def number(value):
    return f"{value:.3g}" if value < 99.95 else f"{value:.0f}"


def spread(values):
    return f"{number(statistics.median(values))} ({number(min(values))} to {number(max(values))})"


def markdown(results, peers):
    lines = [["model", "row", "threads", OURS, *(word for name in peers for word in (name, "ratio")), "of read peak",
              "of arithmetic peak"]]
    for result in results:
        unit = " s" if result["unit"] == "s" else ""
        speeds = {name: spread(values) + unit for name, values in result["values"].items()}
        line = [result["model"], result["row"], str(result["threads"]), speeds[OURS]]
        for name in peers:
            line += [speeds[name], f"{result['ratios'][name]:.2f}"] if name in speeds else ["", ""]
        for share in result["read_share"], result["operations_share"]:
            line.append("" if share is None else f"{share:.0%}")
        lines.append(line)
    widths = [max(map(len, column)) for column in zip(*lines)]
    lines.insert(1, ["-" * width for width in widths])
    return "\n".join("| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in lines)


def model_path(name):
    for path in (MODELS / f"{name}.gguf", Path(name)):
        if path.is_file():
            return path
    raise argparse.ArgumentTypeError(f"no model {name}: neither a file nor one of build/peers/models")


def peer_name(name):
    if name not in PEERS:
        raise argparse.ArgumentTypeError(f'no peer "{name}": {", ".join(PEERS)}')
    if name == "torch" and not importlib.util.find_spec("torch"):
        raise argparse.ArgumentTypeError("torch is not installed; run bench/peers/setup --torch")
    return name


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
    parser.add_argument("--peers", type=comma_list(peer_name), default=["llama.cpp"],
                        help="llama.cpp,torch (default: llama.cpp); torch only runs models in F32, F16 and BF16")
    parser.add_argument("-t", "--threads", type=comma_list(int), default=[1, 2])
    parser.add_argument("-r", "--repetitions", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="one JSON document instead of a table")
    options = parser.parse_args()
    if options.repetitions < 1 or min(options.threads) < 1:
        parser.error("repetitions and threads must be at least 1")

    results = [result for model in options.models for result in run_model(model, options)]
    print(json.dumps(results) if options.json else markdown(results, options.peers))


if __name__ == "__main__":
    main()
