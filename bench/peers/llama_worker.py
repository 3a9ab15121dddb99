"""llama.cpp for compare.py, in the protocol of worker.py."""

import os
import sys

import llama_cpp

from worker import CHUNK, Worker, serve

PADDING = 256  # llama.cpp rounds the positions of a sequence up to this


@llama_cpp.llama_log_callback
def ignore_log(level, text, data):
    pass


class LlamaWorker(Worker):
    def __init__(self, path):
        self.model = llama_cpp.llama_model_load_from_file(
            os.fsencode(path), llama_cpp.llama_model_default_params())
        if not self.model:
            raise SystemExit(f"compare: llama.cpp cannot load {path}")
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        self.context = None
        self.batch = llama_cpp.llama_batch_init(CHUNK, 0, 1)

    def make_cache(self, sequences, positions, threads):
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

    def rewind(self, sequences, position):
        memory = llama_cpp.llama_get_memory(self.context)
        for sequence in range(sequences):
            llama_cpp.llama_memory_seq_rm(memory, sequence, position, -1)

    def prefill(self, sequences, begin, end):
        rows = [(sequence, position) for sequence in range(sequences) for position in range(begin, end)]
        for start in range(0, len(rows), CHUNK):
            self.forward(rows[start:start + CHUNK], end - 1)

    def decode(self, sequences, position):
        self.forward([(sequence, position) for sequence in range(sequences)], position)

    def forward(self, rows, position_with_logits):
        """rows: (sequence, position) of each token."""
        batch = self.batch
        batch.n_tokens = len(rows)
        for i, (sequence, position) in enumerate(rows):
            batch.token[i] = self.token(position)
            batch.pos[i] = position
            batch.n_seq_id[i] = 1
            batch.seq_id[i][0] = sequence
            batch.logits[i] = position == position_with_logits
        status = llama_cpp.llama_decode(self.context, batch)
        if status != 0:
            raise SystemExit(f"compare: llama.cpp's decode failed with status {status}")
        llama_cpp.llama_synchronize(self.context)


if __name__ == "__main__":
    llama_cpp.llama_log_set(ignore_log, None)
    llama_cpp.llama_backend_init()
    serve(LlamaWorker, sys.argv[1], int(sys.argv[2]))
