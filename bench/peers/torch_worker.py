"""PyTorch on the CPU for compare.py, in the protocol of worker.py: a plain Llama forward in eager mode.

With --argmax, prints the most likely next token after each of the given ones instead, to hold against
`kvasir logits --tokens ... --top 1`: the first half is one prefill, the rest another, the last token a decode.
"""

import argparse
import types

import gguf
import torch
import torch.nn.functional as F

from worker import CHUNK, Refused, Worker, serve

TYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
LAYER = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")


class TorchWorker(Worker):
    """Weights stay in the mapped file; activations and cache are of their type."""

    def __init__(self, path):
        file = gguf.GGUFReader(path, "c")  # copies on write, as torch wants no memory that cannot be written
        self.read_parameters({name: field.contents() for name, field in file.fields.items()
                              if not name.startswith("tokenizer.")})
        matrix_types = {tensor.tensor_type.name for tensor in file.tensors if len(tensor.shape) > 1}
        if len(matrix_types) != 1 or not matrix_types <= TYPES.keys():
            raise Refused(f"torch runs matrices that are all F32, F16 or BF16, not {', '.join(sorted(matrix_types))}")
        (matrix_type,) = matrix_types
        self.type = TYPES[matrix_type]
        tensors = {tensor.name: torch.from_numpy(tensor.data).view(TYPES[tensor.tensor_type.name]).to(self.type)
                   for tensor in file.tensors}
        self.take_weights(tensors)
        self.vocabulary = len(self.embedding)

    def read_parameters(self, fields):
        if fields["general.architecture"] != "llama":
            raise Refused(f"torch runs the architecture llama only, not {fields['general.architecture']}")
        self.n_layer = fields["llama.block_count"]
        self.n_head = fields["llama.attention.head_count"]
        self.n_kv_head = fields.get("llama.attention.head_count_kv", self.n_head)
        self.epsilon = fields["llama.attention.layer_norm_rms_epsilon"]
        self.rope_base = fields.get("llama.rope.freq_base", 10000.0)
        self.head_dim = fields.get("llama.attention.key_length", fields["llama.embedding_length"] // self.n_head)
        if (fields.get("llama.rope.scaling.type", "none") != "none" or
                fields.get("llama.rope.dimension_count", self.head_dim) != self.head_dim):
            raise Refused("torch runs neither scaled nor partial rotary embeddings")

    def take_weights(self, tensors):
        self.embedding = tensors.pop("token_embd.weight")
        self.output_norm = tensors.pop("output_norm.weight")
        self.output = tensors.pop("output.weight", self.embedding)
        self.layers = [types.SimpleNamespace(**{name: tensors.pop(f"blk.{i}.{name}.weight") for name in LAYER})
                       for i in range(self.n_layer)]
        if tensors:
            raise Refused(f"torch runs plain Llama only, without {next(iter(tensors))}")

    def make_cache(self, sequences, positions, threads):
        torch.set_num_threads(threads)
        # [n_layer, keys and values, sequence, n_kv_head, position, head_dim]
        self.cache = torch.zeros(self.n_layer, 2, sequences, self.n_kv_head, positions, self.head_dim, dtype=self.type)
        frequencies = self.rope_base ** (-torch.arange(0, self.head_dim, 2, dtype=torch.float64) / self.head_dim)
        angles = torch.arange(positions)[:, None] * frequencies
        self.rotations = torch.polar(torch.ones_like(angles), angles).to(torch.complex64)  # [position, head_dim / 2]

    def rewind(self, sequences, position):
        pass  # attention sees no position after its own

    def prefill(self, sequences, begin, end):
        for sequence in range(sequences):  # each by itself
            for start in range(begin, end, CHUNK):
                tokens = [self.token(position) for position in range(start, min(start + CHUNK, end))]
                self.forward([tokens], start, sequence, all_logits=False)

    def decode(self, sequences, position):
        self.forward([[self.token(position)]] * sequences, position)

    @torch.inference_mode()
    def forward(self, tokens, begin, sequence=0, all_logits=True):
        """Logits [sequences, tokens or 1, vocabulary] of tokens [sequences, tokens] at positions from begin."""
        x = F.embedding(torch.tensor(tokens), self.embedding)
        end = begin + x.shape[1]
        rotations = self.rotations[begin:end, None]
        cache = self.cache[:, :, sequence:sequence + len(tokens)]
        mask = None if begin == 0 else torch.ones(end - begin, end, dtype=torch.bool).tril(begin)
        for layer, (keys, values) in zip(self.layers, cache):
            normed = self.norm(x, layer.attn_norm)
            q = rotate(self.heads(normed, layer.attn_q), rotations).transpose(1, 2)
            k = rotate(self.heads(normed, layer.attn_k), rotations).transpose(1, 2)
            keys[:, :, begin:end] = k
            values[:, :, begin:end] = self.heads(normed, layer.attn_v).transpose(1, 2)
            x = x + F.linear(self.attention(q, keys[:, :, :end], values[:, :, :end], mask), layer.attn_output)
            normed = self.norm(x, layer.ffn_norm)
            x = x + F.linear(F.silu(F.linear(normed, layer.ffn_gate)) * F.linear(normed, layer.ffn_up), layer.ffn_down)
        return F.linear(self.norm(x if all_logits else x[:, -1:], self.output_norm), self.output)

    def norm(self, x, weight):
        return F.rms_norm(x, weight.shape, weight, self.epsilon)

    def heads(self, x, weight):
        """[sequences, tokens, d_model] to [sequences, tokens, heads, head_dim]"""
        return F.linear(x, weight).unflatten(-1, (-1, self.head_dim))

    def attention(self, q, keys, values, mask):
        """q [sequences, n_head, tokens, head_dim] to [sequences, tokens, n_head * head_dim]"""
        if q.shape[2] == 1:  # a group's heads as rows of one product: in 16 bits several times enable_gqa's speed
            out = F.scaled_dot_product_attention(q.reshape(len(q), self.n_kv_head, -1, self.head_dim), keys, values)
            return out.reshape(len(q), 1, -1)
        out = F.scaled_dot_product_attention(q, keys, values, mask, is_causal=mask is None, enable_gqa=True)
        return out.transpose(1, 2).flatten(2)


def rotate(x, rotations):
    """Rotary embedding of x [..., head_dim]: GGUF's rows of attn_q and attn_k are in an order in which the two numbers
    of a pair are neighbours, that is one complex number."""
    pairs = torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))
    return torch.view_as_real(pairs * rotations).flatten(-2).to(x.dtype)


def argmax(worker, tokens, threads):
    worker.make_cache(1, len(tokens), threads)
    cuts = sorted({0, len(tokens) // 2, len(tokens) - 1, len(tokens)})
    return [token for begin, end in zip(cuts, cuts[1:])
            for token in worker.forward([tokens[begin:end]], begin)[0].argmax(-1).tolist()]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("threads", type=int)
    parser.add_argument("--argmax", metavar="TOKENS", help="ids such as 1,2,3")
    options = parser.parse_args()
    if not options.argmax:
        serve(TorchWorker, options.model, options.threads)
        return
    try:
        worker = TorchWorker(options.model)
    except Refused as refused:
        parser.exit(1, f"torch_worker: {refused}\n")
    print(*argmax(worker, [int(token) for token in options.argmax.split(",")], options.threads))


if __name__ == "__main__":
    main()
