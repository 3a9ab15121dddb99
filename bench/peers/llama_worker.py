"""llama.cpp, measured once for each line of standard input: as its own llama-bench measures.

A request is {"prefill": tokens or 0, "decode": tokens or 0, "depth", "batch", "threads"}, the answer {"seconds"}. The
first answer, before any request, is {"first_token_seconds"}: opening the file, and a forward pass of one token.
"""

import json
import os
import sys
import time

import llama_cpp

CHUNK = 512
PADDING = 256  # llama.cpp rounds the positions of a sequence up to this


@llama_cpp.llama_log_callback
def ignore_log(level, text, data):
    pass


class Worker:
    def __init__(self, path, threads):
        llama_cpp.llama_log_set(ignore_log, None)
        llama_cpp.llama_backend_init()
        start = time.perf_counter()
        self.model = llama_cpp.llama_model_load_from_file(
            os.fsencode(path), llama_cpp.llama_model_default_params())
        if not self.model:
            raise SystemExit(f"compare: llama.cpp cannot load {path}")
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.context, self.case = None, None
        self.batch = llama_cpp.llama_batch_init(CHUNK, 0, 1)
        self.make_context(1, 1, threads)
        self.decode_batch([(0, 0)], 0)
        self.first_token_seconds = time.perf_counter() - start

    def make_context(self, sequences, positions, threads):
        if self.context:
            llama_cpp.llama_free(self.context)
        parameters = llama_cpp.llama_context_default_params()  # f16 cache, flash attention as it chooses
        parameters.n_ctx = sequences * -(-positions // PADDING) * PADDING
        parameters.n_seq_max = sequences
        parameters.n_batch = parameters.n_ubatch = CHUNK
        parameters.n_threads = parameters.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, parameters)
        if not self.context:
            raise SystemExit(f"compare: llama.cpp has no context for {sequences} x {positions} positions")

    def decode_batch(self, rows, first_with_logits):
        """rows: (sequence, position) of each token."""
        batch = self.batch
        batch.n_tokens = len(rows)
        for i, (sequence, position) in enumerate(rows):
            batch.token[i] = position * 7919 % self.vocabulary
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = i >= first_with_logits
        status = llama_cpp.llama_decode(self.context, batch)
        if status != 0:
            raise SystemExit(f"compare: llama.cpp's decode failed with status {status}")
        llama_cpp.llama_synchronize(self.context)

    def prefill(self, sequence, begin, end):
        for start in range(begin, end, CHUNK):
            stop = min(start + CHUNK, end)
            self.decode_batch([(sequence, position) for position in range(start, stop)], stop - start - 1)

    def run(self, request, tokens):
        depth = request["depth"]
        memory = llama_cpp.llama_get_memory(self.context)
        for sequence in range(request["batch"]):
            llama_cpp.llama_memory_seq_rm(memory, sequence, depth, -1)
        start = time.perf_counter()
        if request["prefill"]:
            self.prefill(0, depth, depth + tokens)
        else:
            for position in range(depth, depth + tokens):
                self.decode_batch([(sequence, position) for sequence in range(request["batch"])], 0)
        return time.perf_counter() - start

    def measure(self, request):
        tokens = request["prefill"] or request["decode"]
        if request != self.case:
            self.make_context(request["batch"], request["depth"] + tokens, request["threads"])
            for sequence in range(request["batch"]):
                self.prefill(sequence, 0, request["depth"])
            self.run(request, request["prefill"] or 1)  # a warm-up
            self.case = request
        return self.run(request, tokens)


def answer(**fields):
    print(json.dumps(fields), flush=True)


def main():
    worker = Worker(sys.argv[1], int(sys.argv[2]))
    answer(first_token_seconds=worker.first_token_seconds)
    for line in sys.stdin:
        answer(seconds=worker.measure(json.loads(line)))


if __name__ == "__main__":
    main()
