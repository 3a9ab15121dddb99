"""Kvasir: LLM inference on the CPU that gives the same bits on every path.

`Model` runs a GGUF file; `kvasir.lab` has a small model, its KV cache and its sampler to take apart. For one file, one
prompt and one seed, tokens and logits do not depend on cache, chunk size or number of threads.

Errors: ValueError for arguments, shapes, sizes and files that cannot be used as given, OSError for files that cannot be
read, RuntimeError for a computation that failed.
"""

from . import lab
from .model import Generation, Message, Model, Token, default_model_path

__all__ = ["Generation", "Message", "Model", "Token", "default_model_path", "lab"]
