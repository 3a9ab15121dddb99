"""A GGUF model: text from a prompt, logits, tokens."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import _arrays, _kvasir

Message = Mapping[str, str]  # {"role": ..., "content": ...}
Prompt = str | Sequence[int] | NDArray[np.integer]

_DEFAULT_FILE = "kvasir/models/SmolLM2-135M-Instruct.Q4_1.gguf"
_KV_TYPES = {"f16": _kvasir.KvType.f16, "f32": _kvasir.KvType.f32, "bf16": _kvasir.KvType.bf16}
_ACTIVATIONS = {"default": _kvasir.Activations.default, "f32": _kvasir.Activations.f32}


def default_model_path() -> Path:
    """Where Model() looks: the file that KVASIR_MODEL names, else the one below $XDG_DATA_HOME or ~/.local/share."""
    if named := os.environ.get("KVASIR_MODEL"):
        return Path(named)
    data_home = os.environ.get("XDG_DATA_HOME")
    return (Path(data_home) if data_home else Path.home() / ".local" / "share") / _DEFAULT_FILE


def _choice(name: str, value: Any, choices: Mapping[str, Any]) -> Any:
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} is {value!r}, must be one of {', '.join(choices)}")
    return choices[value]


def _utf8(name: str, text: Any) -> str:
    if not isinstance(text, str):
        raise ValueError(f"{name} is {text!r}, must be a str")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"{name} has a lone surrogate at character {error.start}") from None
    return text


@dataclasses.dataclass(frozen=True, slots=True)
class Token:
    """One generated token."""

    id: int
    text: str  # what may be shown now: whole characters, nothing that could still become a stop string
    logprob: float | None = None  # natural log of the raw model's probability, if asked for
    top_logprobs: tuple[tuple[int, float], ...] | None = None  # the most probable ids, best first, if asked for


class Generation(Iterator[Token]):
    """The tokens of one generation, each computed when it is asked for.

    close(), leaving a `with` block or dropping the object stops it. What there is so far can be read at any time.
    """

    def __init__(self, stream: _kvasir.Stream) -> None:
        self._stream = stream

    def __iter__(self) -> Generation:
        return self

    def __next__(self) -> Token:
        drawn: Any = self._stream.next()
        if drawn is None:
            raise StopIteration
        token, text, logprob, top = drawn
        return Token(token, text, logprob, None if top is None else tuple(top))

    def close(self) -> None:
        """Stops the generation; if it was not over, its finish_reason becomes "cancelled"."""
        self._stream.cancel()

    def __enter__(self) -> Generation:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def tokens(self) -> list[int]:
        """Ids of all generated tokens, an end token too."""
        return self._stream.tokens

    @property
    def text(self) -> str:
        """The text without control tokens, up to the stop: all the tokens' texts, concatenated."""
        return self._stream.text

    @property
    def finish_reason(self) -> str | None:
        """ "stop", "length" or "cancelled"; None while there is more to come."""
        return self._stream.finish_reason

    @property
    def stop_reason(self) -> str | None:
        """The stop string that was found, or the spelling of the end token."""
        return self._stream.stop_reason

    @property
    def prefill_seconds(self) -> float:
        return self._stream.prefill_seconds

    @property
    def decode_seconds(self) -> float:
        return self._stream.decode_seconds


class Model:
    """A model file, loaded. May be used from several Python threads; one of them computes at a time.

    path: a GGUF file; None: default_model_path(). threads: 0 for as many as the process may use.
    activations: "default" (as the weights ask for) or "f32" (float32 inputs everywhere). kv_type: in which keys and
    values are kept, "f16", "f32" or "bf16"; None: f16, but f32 with activations "f32". The last two change results; the number of threads never does.
    OSError if the file cannot be read, ValueError if it holds no model of a supported kind.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        threads: int = 0,
        activations: str = "default",
        kv_type: str | None = None,
    ) -> None:
        form = _choice("activations", activations, _ACTIVATIONS)
        if kv_type is None:
            self._kv_type = _kvasir.default_kv_type(form)
        else:
            self._kv_type = _choice("kv_type", kv_type, _KV_TYPES)
        threads = _arrays.integer("threads", threads, 0, _arrays.INT32_MAX)
        file = default_model_path() if path is None else Path(path)
        if path is None and not file.is_file():
            raise FileNotFoundError(f"no model at {file}: give a path, or set KVASIR_MODEL to a GGUF file")
        self._loaded = _kvasir.LoadedModel.load(os.fspath(file), threads, form)

    # ---- What it is

    @property
    def path(self) -> str:
        return self._loaded.path

    @property
    def threads(self) -> int:
        return self._loaded.threads

    @property
    def config(self) -> dict[str, int | float]:
        """vocab_size, max_seq (the context, in tokens), n_layer, n_head, n_kv_head, head_dim, d_model, d_ff,
        rope_theta, rms_eps."""
        return self._loaded.config

    @property
    def vocab_size(self) -> int:
        return int(self.config["vocab_size"])

    @property
    def weight_bytes(self) -> int:
        return self._loaded.weight_bytes

    @property
    def bos_token_id(self) -> int | None:
        return self._loaded.bos

    @property
    def eos_token_id(self) -> int | None:
        return self._loaded.eos

    def fingerprint(self) -> str:
        """What decides the numbers, as 16 hexadecimal digits: file, arithmetic, activations, kv_type. Reads the file."""
        return self._loaded.fingerprint(self._kv_type)

    # ---- Text and tokens

    def tokenize(self, text: str, parse_control: bool = False) -> list[int]:
        """Ids of a text, without BOS. Spellings of control tokens are ordinary text unless parse_control is set."""
        return self._loaded.tokenize(_utf8("text", text), bool(parse_control))

    def detokenize(self, ids: Sequence[int] | NDArray[np.integer], skip_control: bool = False) -> str:
        """The text of token ids; U+FFFD for bytes that are not UTF-8. ValueError for an id outside the vocabulary."""
        return self._loaded.detokenize(self._ids("ids", ids), bool(skip_control))

    def apply_chat_template(
        self, messages: Sequence[Message], add_generation_prompt: bool = True, tokenize: bool = True
    ) -> list[int] | str:
        """The conversation as token ids (or, for reading, as text), up to where the assistant's answer begins.

        No text in a message becomes a control token. ValueError if the model has no chat template that can be rendered,
        or its template refuses the conversation.
        """
        pairs = []
        for index, message in enumerate(messages):
            try:
                role, content = message["role"], message["content"]
            except (KeyError, TypeError, IndexError):
                raise ValueError(f'message {index} must be {{"role": ..., "content": ...}}') from None
            pairs.append((_utf8(f"role of message {index}", role), _utf8(f"content of message {index}", content)))
        render = self._loaded.chat_ids if tokenize else self._loaded.chat_text
        return render(pairs, bool(add_generation_prompt))

    # ---- Computation

    def logits(self, prompt: Prompt, *, use_cache: bool = True, prefill_chunk: int = 0) -> NDArray[np.float32]:
        """Raw logits of every position of the prompt, (tokens, vocab_size).

        prefill_chunk: tokens a run at most; 0: the engine chooses. Neither it nor use_cache changes a bit.
        ValueError for an empty prompt or one that exceeds the context.
        """
        chunk = _arrays.integer("prefill_chunk", prefill_chunk)
        return self._loaded.logits(self._prompt(prompt), self._kv_type, bool(use_cache), chunk)

    def generate(
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
        use_cache: bool = True,
        prefill_chunk: int = 0,
        logprobs: int | None = None,
    ) -> Generation:
        """The tokens that follow a prompt (text, or token ids), one after the other.

        max_tokens: None for as many as the context holds; 0 gives none. Temperature 0 is greedy. stop: the text ends
        before the first of these strings. ignore_eos: go on after the model's end token. logprobs: that many of the most
        probable ids with each token. use_cache, prefill_chunk: as in logits().
        Order: logit_bias (-100 to 100), repetition penalty (prompt and output), presence and frequency penalties (output
        only), temperature, top_k (0: off), top_p, min_p, one draw.
        ValueError, here and not at the first token, if a parameter is out of range, the prompt is empty, or it leaves
        no room for a token. RuntimeError, from the iterator, if the model's logits are not finite.
        """
        request = _kvasir.GenerateRequest()
        self._fill(
            request, prompt, max_tokens, temperature, top_k, top_p, min_p, seed, repetition_penalty, presence_penalty,
            frequency_penalty, logit_bias, stop, ignore_eos, logprobs,
        )
        request.kv_type = self._kv_type
        request.use_cache = bool(use_cache)
        request.prefill_chunk = _arrays.integer("prefill_chunk", prefill_chunk)
        return Generation(_kvasir.Stream(self._loaded, request))

    def chat(self, messages: Sequence[Message], **options: Any) -> Generation:
        """The assistant's answer to a conversation; options as generate()."""
        return self.generate(self.apply_chat_template(messages), **options)

    def _fill(
        self,
        request: _kvasir.CompletionRequest,
        prompt: Prompt,
        max_tokens: int | None,
        temperature: float,
        top_k: int,
        top_p: float,
        min_p: float,
        seed: int,
        repetition_penalty: float,
        presence_penalty: float,
        frequency_penalty: float,
        logit_bias: Mapping[int, float] | None,
        stop: str | Sequence[str],
        ignore_eos: bool,
        logprobs: int | None,
    ) -> None:
        """What is wanted, checked, however it is run."""
        sampling = _kvasir.SamplingParams()
        sampling.temperature = _arrays.number("temperature", temperature)
        sampling.top_k = _arrays.integer("top_k", top_k)
        sampling.top_p = _arrays.number("top_p", top_p)
        sampling.min_p = _arrays.number("min_p", min_p)
        sampling.seed = _arrays.integer("seed", seed, 0, 2**64 - 1)
        sampling.repetition_penalty = _arrays.number("repetition_penalty", repetition_penalty)
        sampling.presence_penalty = _arrays.number("presence_penalty", presence_penalty)
        sampling.frequency_penalty = _arrays.number("frequency_penalty", frequency_penalty)
        sampling.logit_bias = [
            (_arrays.integer("token id in logit_bias", token, 0, self.vocab_size - 1), _arrays.number("logit_bias", bias))
            for token, bias in (logit_bias or {}).items()
        ]
        request.prompt = self._prompt(prompt)
        request.sampling = sampling
        request.max_tokens = None if max_tokens is None else _arrays.integer("max_tokens", max_tokens)
        request.stop = [_utf8("stop", text) for text in ([stop] if isinstance(stop, str) else stop)]
        request.ignore_eos = bool(ignore_eos)
        request.logprobs = None if logprobs is None else _arrays.integer("logprobs", logprobs, 0, self.vocab_size)

    def _ids(self, name: str, ids: Any) -> list[int]:
        checked: list[int] = _arrays.token_ids(name, ids, ("tokens",), self.vocab_size).tolist()
        return checked

    def _prompt(self, prompt: Prompt) -> list[int]:
        if isinstance(prompt, str):
            return self._loaded.encode_prompt(_utf8("prompt", prompt))
        return self._ids("prompt", prompt)
