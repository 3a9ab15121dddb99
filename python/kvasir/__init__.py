"""Kvasir: LLM inference on the CPU that gives the same bits on every path.

`Model` runs a GGUF file, `Engine` many requests on it at once; `kvasir.lab` has a small model, its KV cache and its sampler to take apart. For one file, one
prompt and one seed, tokens and logits do not depend on cache, chunk size or number of threads.

Errors: ValueError for arguments, shapes, sizes and files that cannot be used as given, OSError for files that cannot be
read, RuntimeError for a computation that failed.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import lab
    from .engine import Engine, EngineMetrics, Request, Result
    from .model import Generation, Message, Model, Token, default_model_path

_ENGINE = ["Engine", "EngineMetrics", "Request", "Result"]
_MODEL = ["Generation", "Message", "Model", "Token", "default_model_path"]
__all__ = [*_ENGINE, *_MODEL, "lab"]


def __getattr__(name: str) -> Any:
    """Imports on first use: kvasir.plots needs nothing of the compiled module."""
    if name == "lab":
        return import_module(".lab", __name__)
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(".engine" if name in _ENGINE else ".model", __name__), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
