"""Many requests on one model at once: continuous batching over a paged cache that shares prefixes."""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from . import _arrays, _kvasir
from .model import _KV_TYPES, Model, Prompt, Token, _choice, _utf8

_SPECULATIONS = {"ngram": _kvasir.Speculation.NGRAM, "draft": _kvasir.Speculation.DRAFT_MODEL}


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """One answer, when it is over."""

    tokens: list[int]  # ids of all generated tokens, an end token too
    text: str  # without control tokens, up to the stop: all the tokens' texts, concatenated
    finish_reason: str  # "stop", "length" or "cancelled"
    stop_reason: str | None  # the stop string that was found, or the spelling of the end token
    cached_tokens: int  # of the prompt, whose keys and values were there already
    preemptions: int  # how often its blocks were given to others, to be computed again
    drafted: int  # tokens that were guessed
    accepted: int  # and of them rightly
    prefill_seconds: float  # from its first step to its first token
    decode_seconds: float  # from there to its end


@dataclasses.dataclass(frozen=True, slots=True)
class EngineMetrics:
    """Counts of an engine as of its last step. kv_blocks_free + kv_blocks_cached + kv_blocks_referenced = kv_blocks."""

    running: int  # sequences now: each choice of a request is one
    waiting: int
    steps: int
    computed_tokens: int  # positions that went through the model
    generated_tokens: int
    preemptions: int
    drafted: int  # tokens that were guessed
    accepted: int  # and of them rightly
    schedule_seconds: float  # of all steps, as the next three
    draft_seconds: float
    forward_seconds: float
    draw_seconds: float
    kv_blocks: int  # of 16 positions
    kv_blocks_free: int
    kv_blocks_cached: int  # not in use, to be found by their contents until somebody needs them
    kv_blocks_referenced: int
    kv_evictions: int  # cached blocks given up
    kv_copies: int  # shared blocks copied before they were written


class Request(Iterator[Any]):
    """A request of an engine: an iterator of its Tokens, each as soon as it is drawn; with n > 1 of (choice, Token).

    Dropping the object cancels the request. RuntimeError, from the iterator and from result(), if a choice failed: the
    model's logits are not finite, or the engine itself failed.
    """

    def __init__(self, engine: Engine, wanted: _kvasir.EngineRequest) -> None:
        self._engine = engine  # kept alive
        self._several = wanted.n > 1
        self._pending = _kvasir.PendingRequest(engine._running, wanted)

    def __iter__(self) -> Request:
        return self

    def __next__(self) -> Any:
        drawn: Any = self._pending.next()
        if drawn is None:
            raise StopIteration
        choice, token, text, logprob, top = drawn
        result = Token(token, text, logprob, None if top is None else tuple(top))
        return (choice, result) if self._several else result

    def cancel(self) -> None:
        """Takes effect at the engine's next step: what is not over ends there as "cancelled"."""
        self._pending.cancel()

    def result(self) -> Any:
        """Waits until all is over; a Result, or with n > 1 a list of one for each choice."""
        results = [Result(*fields) for fields in self._pending.results()]
        return results if self._several else results[0]

    @property
    def done(self) -> bool:
        """Whether all choices are over. Their tokens may still be asked for."""
        return self._pending.done


class Engine:
    """Runs many requests on a model at once. Whatever runs beside a request, its tokens are those of Model.generate.

    Someone has to step: a thread of its own (start() and stop(), or `with engine.running():`), the caller by step(), or,
    if neither does, whoever waits for a token or a result. All methods may be called by any thread. An engine, its
    model's other engines and Model.generate() compute in turns.

    kv_blocks: blocks of 16 positions for keys and values; None: as many as fit kv_bytes. max_running: sequences in one
    step (each choice of a request is one). max_waiting: requests that wait to run for the first time. step_tokens: in
    one step, of all sequences; at least max_running; longer prompts go in pieces. share_prefixes: whether a prompt that
    begins like another uses its keys and values. kv_type: "f16", "f32" or "bf16"; None: the model's. draft_model: a
    smaller model with the same vocabulary, whose keys and values take their part of kv_bytes. None of them but kv_type
    changes a token.
    ValueError for arguments out of range, for a draft model with another vocabulary, and if kv_bytes holds no block.
    """

    def __init__(
        self,
        model: Model,
        *,
        kv_blocks: int | None = None,
        kv_bytes: int = 1 << 30,
        max_running: int = 64,
        max_waiting: int = 1024,
        step_tokens: int = 512,
        share_prefixes: bool = True,
        kv_type: str | None = None,
        draft_model: Model | None = None,
    ) -> None:
        if not isinstance(model, Model):
            raise ValueError(f"model is {model!r}, must be a kvasir.Model")
        if draft_model is not None and not isinstance(draft_model, Model):
            raise ValueError(f"draft_model is {draft_model!r}, must be a kvasir.Model or None")
        options = _kvasir.EngineOptions()
        options.kv_blocks = 0 if kv_blocks is None else _arrays.integer("kv_blocks", kv_blocks, 1)
        options.kv_bytes = _arrays.integer("kv_bytes", kv_bytes, 0)
        options.max_running = _arrays.integer("max_running", max_running, 1, _arrays.INT32_MAX)
        options.max_waiting = _arrays.integer("max_waiting", max_waiting, 1)
        options.step_tokens = _arrays.integer("step_tokens", step_tokens, 1)
        options.share_prefixes = bool(share_prefixes)
        options.kv_type = model._kv_type if kv_type is None else _choice("kv_type", kv_type, _KV_TYPES)
        self._model = model
        draft = None if draft_model is None else draft_model._loaded
        self._running = _kvasir.RunningEngine(model._loaded, draft, options)
        # Also at the interpreter's end, whose last steps no thread may outlive.
        self._closing = weakref.finalize(self, self._running.close)

    def submit(
        self,
        prompt: Prompt,
        *,
        max_tokens: int | None = None,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
        seed: int = 0,
        repetition_penalty: float = 1.0,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        logit_bias: Mapping[int, float] | None = None,
        stop: str | Sequence[str] = (),
        ignore_eos: bool = False,
        logprobs: int | None = None,
        n: int = 1,
        priority: int = 0,
        cache_salt: str = "",
        speculation: str | None = None,
    ) -> Request:
        """A request; it runs when the engine steps.

        n: answers, 1 to 128, each with a noise of its own; the first is that of n = 1. priority: lower numbers first,
        equal ones in the order of their arrival. cache_salt: only requests of one salt share prefixes. speculation:
        None, "ngram" (tokens are guessed from what followed the same words before) or "draft" (by the engine's
        draft_model); only the time depends on it. All else as in Model.generate().
        ValueError if a parameter is out of range, the prompt is empty, or it leaves no room for a token in the model's
        context or in the whole pool. RuntimeError if max_waiting requests wait already, or the engine is closed.
        """
        wanted = _kvasir.EngineRequest()
        self._model._fill(
            wanted, prompt, max_tokens, temperature, top_k, top_p, min_p, seed, repetition_penalty, presence_penalty,
            frequency_penalty, logit_bias, stop, ignore_eos, logprobs,
        )
        wanted.n = _arrays.integer("n", n, 1, 128)
        wanted.priority = _arrays.integer("priority", priority, -(2**31), _arrays.INT32_MAX)
        wanted.cache_salt = _utf8("cache_salt", cache_salt)
        if speculation is not None:
            wanted.speculation = _choice("speculation", speculation, _SPECULATIONS)
        return Request(self, wanted)

    def step(self) -> bool:
        """One forward pass over what can run. False if there was nothing to do. RuntimeError if the engine is closed."""
        return self._running.step()

    def start(self) -> None:
        """Steps in a thread of its own from now on, without the GIL. RuntimeError if it does so already, or is closed."""
        self._running.start()

    def stop(self) -> None:
        """Ends that thread after the step in hand. Requests stay where they are."""
        self._running.stop()

    @contextlib.contextmanager
    def running(self) -> Iterator[Engine]:
        """start(), and at the end of the `with` block stop()."""
        self.start()
        try:
            yield self
        finally:
            self.stop()

    def metrics(self) -> EngineMetrics:
        return EngineMetrics(**self._running.metrics())

    def close(self) -> None:
        """Stops; what is not over ends as "cancelled". Nothing can be submitted any more."""
        self._running.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
