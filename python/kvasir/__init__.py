"""Kvasir: LLM inference on the CPU that gives the same bits on every path.

`Model` runs a GGUF file, `Engine` many requests on it at once; `kvasir.lab` has a small model, its KV cache and its sampler to take apart. For one file, one
prompt and one seed, tokens and logits do not depend on cache, chunk size or number of threads.

Errors: ValueError for arguments, shapes, sizes and files that cannot be used as given, OSError for files that cannot be
read, RuntimeError for a computation that failed.
"""

from . import lab
from .engine import Engine, EngineMetrics, Request, Result
from .model import Generation, Message, Model, Token, default_model_path

__all__ = [
    "Engine",
    "EngineMetrics",
    "Generation",
    "Message",
    "Model",
    "Request",
    "Result",
    "Token",
    "default_model_path",
    "lab",
]
