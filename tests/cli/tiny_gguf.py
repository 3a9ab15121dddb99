"""Writes GGUF files: a tiny model that loads in no time, and malformed files."""

import math
import random
import struct
from pathlib import Path

UINT8, INT8, UINT16, INT16, UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY, UINT64, INT64, FLOAT64 = range(13)
F32, F16, Q4_0, Q8_0, Q4_K, BF16 = 0, 1, 2, 8, 12, 30  # tensor types

VOCAB = 258  # one token for each byte, then the two control tokens
IM_START, IM_END = 256, 257
CONTEXT = 64

# The one template that is supported so far.
CHAT_TEMPLATE = (Path(__file__).parents[1] / "data/chat/templates/smollm2.jinja").read_text()


def u32(number):
    return struct.pack("<I", number)


def u64(number):
    return struct.pack("<Q", number)


def string(text):
    data = text.encode()
    return u64(len(data)) + data


def entry(key, value_type, payload):
    return string(key) + u32(value_type) + payload


def text(key, value):
    return entry(key, STRING, string(value))


def integer(key, value):
    return entry(key, UINT32, u32(value))


def values(key, element_type, payloads):
    return entry(key, ARRAY, u32(element_type) + u64(len(payloads)) + b"".join(payloads))


def tensor(name, dims, offset, tensor_type=F32):
    """dims as GGUF stores them: the fastest first."""
    return string(name) + u32(len(dims)) + b"".join(map(u64, dims)) + u32(tensor_type) + u64(offset)


def file(entries=(), tensors=(), data=b"", *, magic=b"GGUF", version=3, n_entries=None, n_tensors=None, alignment=32):
    n_tensors = len(tensors) if n_tensors is None else n_tensors
    n_entries = len(entries) if n_entries is None else n_entries
    head = magic + u32(version) + u64(n_tensors) + u64(n_entries) + b"".join(entries) + b"".join(tensors)
    return head + bytes(-len(head) % alignment) + data if data else head


def byte_spellings():
    """GPT-2's printable stand-in for each byte, from its paper's code: unprintable ones are moved above 255."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    moved = (chr(256 + i) for i in range(256))
    return [chr(byte) if byte in printable else next(moved) for byte in range(256)]


# Of each tensor type the values in a block, and a block of random weights of about the same size in all types.
BLOCKS = {
    F32: (1, lambda rng: struct.pack("<f", rng.gauss(0, 0.3))),
    F16: (1, lambda rng: struct.pack("<e", rng.gauss(0, 0.3))),
    BF16: (1, lambda rng: struct.pack("<f", rng.gauss(0, 0.3))[2:]),
    Q8_0: (32, lambda rng: struct.pack("<e", 0.004) + rng.randbytes(32)),
    Q4_0: (32, lambda rng: struct.pack("<e", 0.06) + rng.randbytes(16)),
    Q4_K: (256, lambda rng: struct.pack("<ee", 0.002, 0.015) + rng.randbytes(140)),
}

# What makes tiny_model a model of each type.
MODELS = {
    "F32": {},
    "F16": {"matrices": F16},
    "BF16": {"matrices": BF16},
    "Q8_0": {"matrices": Q8_0, "feed_forward": 64},
    "Q4_0": {"matrices": Q4_0, "feed_forward": 64},
    "Q4_K": {"matrices": Q4_K, "width": 256, "feed_forward": 256},
}


def tiny_model(*, chat_template=CHAT_TEMPLATE, bos=None, alignment=32, extra=(), reverse_tensors=False, layers=1,
               matrices=F32, width=32, feed_forward=48):
    """A llama with fixed random weights over a vocabulary of bytes."""
    head_dim = width // 2
    entries = [
        text("general.architecture", "llama"),
        integer("general.alignment", alignment),
        integer("llama.context_length", CONTEXT),
        integer("llama.block_count", layers),
        integer("llama.embedding_length", width),
        integer("llama.feed_forward_length", feed_forward),
        integer("llama.attention.head_count", 2),
        integer("llama.attention.head_count_kv", 1),
        entry("llama.attention.layer_norm_rms_epsilon", FLOAT32, struct.pack("<f", 1e-5)),
        text("tokenizer.ggml.model", "gpt2"),
        text("tokenizer.ggml.pre", "gpt-2"),
        values("tokenizer.ggml.tokens", STRING, [string(t) for t in [*byte_spellings(), "<|im_start|>", "<|im_end|>"]]),
        values("tokenizer.ggml.token_type", INT32, [u32(1)] * 256 + [u32(3)] * 2),
        values("tokenizer.ggml.merges", STRING, []),
        integer("tokenizer.ggml.eos_token_id", IM_END),
        *extra,
    ]
    if chat_template is not None:
        entries.append(text("tokenizer.chat_template", chat_template))
    if bos is not None:
        entries += [integer("tokenizer.ggml.bos_token_id", bos), entry("tokenizer.ggml.add_bos_token", BOOL, b"\1")]
    shapes = {
        "token_embd.weight": (width, VOCAB),
        "output_norm.weight": (width,),
    }
    for layer in range(layers):
        shapes |= {
            f"blk.{layer}.attn_norm.weight": (width,),
            f"blk.{layer}.attn_q.weight": (width, 2 * head_dim),
            f"blk.{layer}.attn_k.weight": (width, head_dim),
            f"blk.{layer}.attn_v.weight": (width, head_dim),
            f"blk.{layer}.attn_output.weight": (2 * head_dim, width),
            f"blk.{layer}.ffn_norm.weight": (width,),
            f"blk.{layer}.ffn_gate.weight": (width, feed_forward),
            f"blk.{layer}.ffn_up.weight": (width, feed_forward),
            f"blk.{layer}.ffn_down.weight": (feed_forward, width),
        }
    rng = random.Random(20261130)
    tensors, data = [], b""
    for name, dims in shapes.items():
        tensor_type = matrices if len(dims) == 2 else F32
        block_values, random_block = BLOCKS[tensor_type]
        tensors.append(tensor(name, dims, len(data), tensor_type))
        data += b"".join(random_block(rng) for _ in range(math.prod(dims) // block_values))
        data += bytes(-len(data) % alignment)
    return file(entries, tensors[::-1] if reverse_tensors else tensors, data, alignment=alignment)
