"""A peer in a process of its own, measured once for each line of standard input, as llama-bench measures llama.cpp.

A request is {"prefill": tokens or 0, "decode": tokens or 0, "depth", "batch", "threads"}, the answer {"seconds"}: so
many tokens of each of the batch's sequences, as prompts, then so many of all together, one after another. The first
answer, before any request, is {"first_token_seconds"}, from opening the file to the logits of one token; or
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
    """A model with a cache."""

    vocabulary: int
    case = None

    @abc.abstractmethod
    def make_cache(self, sequences, positions, threads):
        """An empty cache in place of the one before; what follows runs on so many threads."""

    @abc.abstractmethod
    def rewind(self, sequences, position):
        """Forgets this position and those after it."""

    @abc.abstractmethod
    def prefill(self, sequences, begin, end):
        """These positions of so many sequences, in passes of CHUNK tokens at most; logits of each one's last."""

    @abc.abstractmethod
    def decode(self, sequences, position):
        """One pass over this position of so many sequences; logits of each."""

    def token(self, position):
        return position * 7919 % self.vocabulary

    def run(self, request, prefill, decode):
        depth, batch = request["depth"], request["batch"]
        self.rewind(batch, depth)
        start = time.perf_counter()
        self.prefill(batch, depth, depth + prefill)
        for position in range(depth + prefill, depth + prefill + decode):
            self.decode(batch, position)
        return time.perf_counter() - start

    def measure(self, request):
        prefill, decode = request["prefill"], request["decode"]
        if request != self.case:
            self.make_cache(request["batch"], request["depth"] + prefill + decode, request["threads"])
            self.prefill(request["batch"], 0, request["depth"])
            self.run(request, prefill, min(decode, 1))  # a warm-up
            self.case = request
        return self.run(request, prefill, decode)


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
