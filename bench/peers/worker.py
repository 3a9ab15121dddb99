"""A peer in a process of its own, measured once for each line of standard input, as llama-bench measures llama.cpp.

A request is {"prefill": tokens or 0, "decode": tokens or 0, "depth", "batch", "threads"}, the answer {"seconds"}. The
first answer, before any request, is {"first_token_seconds"}, from opening the file to the logits of one token; or
{"refused": why} of a model that the peer does not run, and then the process ends.
"""

import abc
import json
import sys
import time

CHUNK = 512  # tokens of a prefill in one forward pass
REST_SECONDS = 0.05  # OpenMP's idle threads spin for some 10 ms, which the next engine's turn must not meet


class Refused(Exception):
    """The peer does not run this model; one line says why."""


class Worker(abc.ABC):
    """A model with a cache. Every forward pass ends with the logits of each sequence's last token."""

    vocabulary: int
    case = None

    @abc.abstractmethod
    def make_cache(self, sequences, positions, threads):
        """An empty cache in place of the one before; what follows runs on so many threads."""

    @abc.abstractmethod
    def rewind(self, sequences, position):
        """Forgets this position and those after it."""

    @abc.abstractmethod
    def prefill(self, sequence, begin, end):
        """One pass over these positions, CHUNK at most, of one sequence."""

    @abc.abstractmethod
    def decode(self, sequences, position):
        """One pass over this position of so many sequences."""

    def token(self, position):
        return position * 7919 % self.vocabulary

    def fill(self, sequence, begin, end):
        for start in range(begin, end, CHUNK):
            self.prefill(sequence, start, min(start + CHUNK, end))

    def run(self, request, tokens):
        depth, batch = request["depth"], request["batch"]
        self.rewind(batch, depth)
        start = time.perf_counter()
        if request["prefill"]:
            self.fill(0, depth, depth + tokens)
        else:
            for position in range(depth, depth + tokens):
                self.decode(batch, position)
        return time.perf_counter() - start

    def measure(self, request):
        tokens = request["prefill"] or request["decode"]
        if request != self.case:
            self.make_cache(request["batch"], request["depth"] + tokens, request["threads"])
            for sequence in range(request["batch"]):
                self.fill(sequence, 0, request["depth"])
            self.run(request, request["prefill"] or 1)  # a warm-up
            self.case = request
        return self.run(request, tokens)


def answer(**fields):
    time.sleep(REST_SECONDS)
    print(json.dumps(fields), flush=True)


def serve(worker_class, path, threads):
    start = time.perf_counter()
    try:
        worker = worker_class(path)
    except Refused as refused:
        answer(refused=str(refused))
        return
    worker.make_cache(1, 1, threads)
    worker.decode(1, 0)
    answer(first_token_seconds=time.perf_counter() - start)
    for line in sys.stdin:
        answer(seconds=worker.measure(json.loads(line)))
