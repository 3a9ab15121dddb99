"""Writes the model files that the comparison runs, each in several number formats.

SmolLM2-135M is quantized again from the installed Q4_1 file. "1B" has the shape of Llama-3.2-1B and seeded
random weights: speed does not depend on their values. llama.cpp's own quantizer makes every file from the
float one, so that both engines read what that engine's users have.
"""

import argparse
import os
import pathlib

import gguf
import llama_cpp
import numpy as np

SMOLLM2 = "SmolLM2-135M-Instruct.Q4_1.gguf"
# Names of llama.cpp's mixes. K-quants need rows of a multiple of 256 and so do not fit SmolLM2's 576.
FILE_TYPES = {
    "F32": llama_cpp.LLAMA_FTYPE_ALL_F32,
    "F16": llama_cpp.LLAMA_FTYPE_MOSTLY_F16,
    "BF16": llama_cpp.LLAMA_FTYPE_MOSTLY_BF16,
    "Q8_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0,
    "Q4_0": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0,
    "Q4_K_M": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_K_M,
}
SMOLLM2_TYPES = ["F32", "BF16", "F16", "Q8_0", "Q4_0"]
ONE_B_TYPES = ["Q8_0", "Q4_0", "Q4_K_M"]

N_LAYER, D_MODEL, N_HEAD, N_KV_HEAD, HEAD_DIM, D_FF, CONTEXT = 16, 2048, 32, 8, 64, 8192, 8192


@llama_cpp.llama_log_callback
def ignore_log(level, text, data):
    pass


def write_whole(path, write):
    """A file is there whole or not at all."""
    if path.exists():
        return
    print(f"peers: writing {path.name}", flush=True)
    partial = path.with_name(path.name + ".partial")
    write(partial)
    partial.rename(path)


def quantize(source, target, name):
    parameters = llama_cpp.llama_model_quantize_default_params()
    parameters.nthread = len(os.sched_getaffinity(0))
    parameters.ftype = FILE_TYPES[name]
    parameters.allow_requantize = True
    status = llama_cpp.llama_model_quantize(os.fsencode(source), os.fsencode(target), parameters)
    if status != 0:
        raise SystemExit(f"peers: llama.cpp cannot quantize {source} to {name} (status {status})")


def add_tokenizer(writer, source):
    """Copies every field of the tokenizer as it is."""
    for name, field in gguf.GGUFReader(source).fields.items():
        if not name.startswith("tokenizer."):
            continue
        kind = field.types[0]
        element = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, field.contents(), kind, element)


def random_bf16(rng, shape):
    """Normal values of variance 1 / fan_in as the bytes of bfloat16."""
    values = rng.standard_normal(shape, dtype=np.float32) * np.float32(shape[-1] ** -0.5)
    return gguf.quants.quantize(values, gguf.GGMLQuantizationType.BF16)


def write_1b(path, tokenizer):
    writer = gguf.GGUFWriter(path, "llama", use_temp_file=False)
    writer.add_name("random weights in the shape of Llama-3.2-1B")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(D_MODEL)
    writer.add_block_count(N_LAYER)
    writer.add_feed_forward_length(D_FF)
    writer.add_head_count(N_HEAD)
    writer.add_head_count_kv(N_KV_HEAD)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(500000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    add_tokenizer(writer, tokenizer)
    vocab = len(gguf.GGUFReader(tokenizer).fields["tokenizer.ggml.tokens"].data)
    writer.add_vocab_size(vocab)

    shapes = {"token_embd.weight": (vocab, D_MODEL), "output_norm.weight": (D_MODEL,)}
    for layer in range(N_LAYER):
        for name, shape in {
            "attn_norm": (D_MODEL,),
            "attn_q": (N_HEAD * HEAD_DIM, D_MODEL),
            "attn_k": (N_KV_HEAD * HEAD_DIM, D_MODEL),
            "attn_v": (N_KV_HEAD * HEAD_DIM, D_MODEL),
            "attn_output": (D_MODEL, N_HEAD * HEAD_DIM),
            "ffn_norm": (D_MODEL,),
            "ffn_gate": (D_FF, D_MODEL),
            "ffn_up": (D_FF, D_MODEL),
            "ffn_down": (D_MODEL, D_FF),
        }.items():
            shapes[f"blk.{layer}.{name}.weight"] = shape
    for name, shape in shapes.items():
        if len(shape) == 1:
            writer.add_tensor_info(name, shape, np.dtype(np.float32), 4 * shape[0])
        else:
            writer.add_tensor_info(name, (shape[0], 2 * shape[1]), np.dtype(np.uint8), 2 * shape[0] * shape[1],
                                   raw_dtype=gguf.GGMLQuantizationType.BF16)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    rng = np.random.default_rng(1)
    for shape in shapes.values():  # one tensor in memory at a time
        writer.write_tensor_data(np.ones(shape, np.float32) if len(shape) == 1 else random_bf16(rng, shape))
    writer.close()


def installed_smollm2():
    data = os.environ.get("XDG_DATA_HOME") or str(pathlib.Path.home() / ".local/share")
    path = pathlib.Path(data) / "kvasir/models" / SMOLLM2
    if not path.exists():
        raise SystemExit(f"peers: {path} is not there; run script/bootstrap")
    return path


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--f32", action="store_true", help="also the 1B model in F32")
    options = parser.parse_args()
    llama_cpp.llama_log_set(ignore_log, None)
    folder = options.folder

    original = installed_smollm2()
    link = folder / "SmolLM2-135M.Q4_1.gguf"
    if not link.exists():
        link.symlink_to(original)
    for name in SMOLLM2_TYPES:
        source = original if name == "F32" else folder / "SmolLM2-135M.F32.gguf"
        write_whole(folder / f"SmolLM2-135M.{name}.gguf", lambda path: quantize(source, path, name))

    base = folder / "1B.BF16.gguf"
    write_whole(base, lambda path: write_1b(path, original))
    for name in ONE_B_TYPES + (["F32"] if options.f32 else []):
        write_whole(folder / f"1B.{name}.gguf", lambda path: quantize(base, path, name))
    (folder / "complete").touch()


if __name__ == "__main__":
    main()
