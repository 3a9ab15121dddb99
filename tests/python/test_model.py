"""kvasir.Model on SmolLM2-135M, against an independent float64 run (tests/data/smollm2) and against itself."""

import gc
import signal
import threading
import time

import numpy as np
import pytest
from golden import read_json

import kvasir

PROMPTS = {prompt["name"]: prompt for prompt in read_json("smollm2/golden.json")["prompts"]}
CAPITAL = PROMPTS["capital"]["text"]
GREEDY = {"temperature": 0}
DRAWN = {"temperature": 0.9, "top_k": 50, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.1, "ignore_eos": True}


def ids(generation):
    return [token.id for token in generation]


@pytest.mark.parametrize("name", ["capital", "counting"])
def test_greedy_tokens_are_those_of_the_float64_model(model, name):
    prompt = PROMPTS[name]
    assert model.tokenize(prompt["text"]) == prompt["ids"]
    generation = model.generate(prompt["text"], max_tokens=64, ignore_eos=True, **GREEDY)
    tokens = list(generation)
    assert [token.id for token in tokens] == prompt["greedy64"]
    assert generation.tokens == prompt["greedy64"]
    assert "".join(token.text for token in tokens) == generation.text
    assert generation.text == model.detokenize(prompt["greedy64"], skip_control=True)
    assert (generation.finish_reason, generation.stop_reason) == ("length", None)
    assert ids(model.generate(prompt["ids"], max_tokens=3, **GREEDY)) == prompt["greedy64"][:3]


@pytest.mark.parametrize("sampling", [GREEDY, DRAWN | {"seed": 5}], ids=["greedy", "drawn"])
def test_cache_and_chunks_change_no_token(model, sampling):
    reference = ids(model.generate(CAPITAL, max_tokens=8, use_cache=False, **sampling))
    assert len(reference) == 8
    for path in ({}, {"prefill_chunk": 1}, {"prefill_chunk": 3}):
        assert ids(model.generate(CAPITAL, max_tokens=8, **sampling, **path)) == reference


def test_a_seed_decides(model):
    runs = [ids(model.generate(CAPITAL, max_tokens=12, seed=seed, **DRAWN)) for seed in (1, 1, 2, 2**64 - 1)]
    assert runs[0] == runs[1]
    assert len({tuple(run) for run in runs}) == 3


def test_logits(model):
    prompt = PROMPTS["code_fib"]
    logits = model.logits(prompt["text"])
    assert logits.shape == (len(prompt["ids"]), model.vocab_size) and logits.dtype == np.float32
    assert np.abs(logits[-1][prompt["last_top20_ids"]] - prompt["last_top20_logits"]).max() < 2e-3
    for path in ({"use_cache": False}, {"prefill_chunk": 1}, {"prefill_chunk": 5}, {"prefill_chunk": 10_000}):
        assert np.array_equal(model.logits(prompt["ids"], **path), logits)
    assert np.array_equal(model.logits(prompt["ids"][:7]), logits[:7])


def test_threads_change_no_logit(model):
    other = kvasir.Model(model.path, threads=3, activations="f32", kv_type="f32")
    assert other.threads == 3
    assert np.array_equal(other.logits(CAPITAL), model.logits(CAPITAL))
    assert other.fingerprint() == model.fingerprint()


def test_long_prompts_run_in_pieces(model):
    prompt = PROMPTS["long_photo"]["ids"]  # longer than the pieces that let signals in
    whole, pieces = (model.generate(prompt, max_tokens=1, logprobs=3, prefill_chunk=chunk) for chunk in (999, 0))
    assert next(whole) == next(pieces)


def test_logprobs_are_those_of_the_raw_model(model):
    generation = model.generate(CAPITAL, max_tokens=3, logprobs=4, temperature=0.3, top_k=1)
    prompt = model.tokenize(CAPITAL)
    for token in generation:
        row = model.logits(prompt)[-1].astype(np.float64)
        expected = row - row.max() - np.log(np.exp(row - row.max()).sum())
        assert abs(token.logprob - expected[token.id]) < 1e-6
        assert [best for best, _ in token.top_logprobs] == np.argsort(-row, kind="stable")[:4].tolist()
        assert token.top_logprobs[0] == (token.id, token.logprob)
        prompt.append(token.id)
    plain = next(model.generate(CAPITAL, max_tokens=1))
    assert plain.logprob is None and plain.top_logprobs is None
    assert next(model.generate(CAPITAL, max_tokens=1, logprobs=0)).top_logprobs == ()


def test_stop_strings_end_the_text_before_them(model):
    text = model.detokenize(PROMPTS["counting"]["greedy64"])
    for stop in (", 11", ["zebra", ", 11", "2,"], [" 9"]):
        generation = model.generate(PROMPTS["counting"]["text"], stop=stop, **GREEDY)
        shown = "".join(token.text for token in generation)
        found = min(([stop] if isinstance(stop, str) else stop), key=lambda s: text.find(s) % 10**6)
        assert shown == generation.text == text[: text.find(found)]
        assert (generation.finish_reason, generation.stop_reason) == ("stop", found)


def test_the_end_token_ends_the_text(model):
    generation = model.generate(PROMPTS["chat_multi"]["ids"], **GREEDY)
    assert "".join(token.text for token in generation) == generation.text
    assert generation.tokens[-1] == model.eos_token_id
    assert generation.tokens == PROMPTS["chat_multi"]["greedy64"][: len(generation.tokens)]
    assert "<|im_end|>" not in generation.text
    assert (generation.finish_reason, generation.stop_reason) == ("stop", "<|im_end|>")


def test_logit_bias_forbids_and_forces(model):
    first = PROMPTS["capital"]["greedy64"][0]
    assert ids(model.generate(CAPITAL, max_tokens=1, logit_bias={first: -100}, **GREEDY)) != [first]
    assert ids(model.generate(CAPITAL, max_tokens=3, logit_bias={260: 100.0}, **GREEDY)) == [260] * 3


def test_closing_stops(model):
    generation = model.generate(CAPITAL, **GREEDY)
    assert generation.finish_reason is None
    taken = [next(generation).id, next(generation).id]
    generation.close()
    assert list(generation) == []
    assert generation.tokens == taken == PROMPTS["capital"]["greedy64"][:2]
    assert generation.finish_reason == "cancelled"
    with model.generate(CAPITAL, **GREEDY) as other:
        for _ in other:
            break
    assert len(other.tokens) == 1 and other.finish_reason == "cancelled"
    finished = model.generate(CAPITAL, max_tokens=1, **GREEDY)
    list(finished)
    finished.close()
    assert finished.finish_reason == "length"


def test_a_generation_outlives_its_model(model):
    generation = kvasir.Model(model.path, activations="f32", kv_type="f32").generate(CAPITAL, max_tokens=4, **GREEDY)
    gc.collect()
    assert ids(generation) == PROMPTS["capital"]["greedy64"][:4]


def test_generations_take_turns(model):
    names = ["capital", "counting", "hello1"]
    generations = [model.generate(PROMPTS[name]["ids"], max_tokens=6, ignore_eos=True, **GREEDY) for name in names]
    rounds = list(zip(*generations))
    for name, tokens in zip(names, zip(*rounds)):
        assert [token.id for token in tokens] == PROMPTS[name]["greedy64"][:6]


def test_threads_share_a_model(model):
    names = ["capital", "counting", "hello1", "once"]
    found = {}

    def run(name):
        found[name] = ids(model.generate(PROMPTS[name]["ids"], max_tokens=6, ignore_eos=True, **GREEDY))

    threads = [threading.Thread(target=run, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {name: PROMPTS[name]["greedy64"][:6] for name in names}


@pytest.mark.parametrize("call", ["logits", "generate"])
def test_ctrl_c_ends_a_long_computation(model, call):
    prompt = PROMPTS["long_photo"]["ids"] * 20
    timer = threading.Timer(0.3, signal.raise_signal, [signal.SIGINT])  # handled by this, the main thread
    compute = {"logits": lambda: model.logits(prompt, prefill_chunk=16), "generate": lambda: list(model.generate(prompt, prefill_chunk=16))}
    started = time.monotonic()
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        compute[call]()
    assert time.monotonic() - started < 5
    assert ids(model.generate(CAPITAL, max_tokens=1, **GREEDY)) == PROMPTS["capital"]["greedy64"][:1]


def test_the_gil_is_free_while_computing(model):
    ticks = []
    stop = threading.Event()

    def tick():
        while not stop.wait(0.001):
            ticks.append(time.monotonic())

    thread = threading.Thread(target=tick)
    thread.start()
    begin = time.monotonic()
    model.logits(PROMPTS["long_photo"]["ids"], prefill_chunk=10_000)  # one call, no look at signals in between
    end = time.monotonic()
    stop.set()
    thread.join()
    inside = [t for t in ticks if begin < t < end - 0.01]
    assert len(inside) > 10


def test_max_tokens(model):
    for n in (0, 1, 2, 3):
        generation = model.generate(CAPITAL, max_tokens=n, ignore_eos=True)
        assert len(ids(generation)) == n
        assert (generation.finish_reason, len(generation.tokens)) == ("length", n)


def test_a_prompt_that_fills_the_context(model):
    context = model.config["max_seq"]
    for length in (context, context + 1, 4 * context):
        with pytest.raises(ValueError, match=f"{length}.*{context}"):
            model.generate([1] * length)
    model.generate([1] * (context - 1))  # room for one; refused or not is known before anything is computed
    with pytest.raises(ValueError, match=f"{context + 1}.*{context}"):
        model.logits([1] * (context + 1))


REFUSED = {
    "empty prompt": (("",), {}, "prompt is empty"),
    "no tokens": (([],), {}, "no tokens"),
    "id outside the vocabulary": (([1, 49152],), {}, "prompt holds 49152"),
    "negative id": (([-1],), {}, "prompt holds -1"),
    "float ids": (([1.0],), {}, "integers"),
    "no prompt": ((None,), {}, "prompt"),
    "bytes": ((b"text",), {}, "prompt"),
    "lone surrogate": (("a\ud800",), {}, "surrogate at character 1"),
    "negative max_tokens": (("a",), {"max_tokens": -1}, "max_tokens is -1"),
    "fractional max_tokens": (("a",), {"max_tokens": 1.5}, "max_tokens is 1.5"),
    "negative temperature": (("a",), {"temperature": -1}, "temperature"),
    "temperature as text": (("a",), {"temperature": "0.7"}, "temperature is '0.7'"),
    "temperature not a number": (("a",), {"temperature": float("nan")}, "temperature"),
    "negative top_k": (("a",), {"top_k": -2}, "top_k"),
    "top_p above 1": (("a",), {"top_p": 1.5}, "top_p"),
    "min_p above 1": (("a",), {"min_p": 2}, "min_p"),
    "negative seed": (("a",), {"seed": -1}, "seed"),
    "repetition_penalty 0": (("a",), {"repetition_penalty": 0}, "repetition_penalty"),
    "presence_penalty 3": (("a",), {"presence_penalty": 3}, "presence_penalty"),
    "frequency_penalty -3": (("a",), {"frequency_penalty": -3}, "frequency_penalty"),
    "bias of an unknown id": (("a",), {"logit_bias": {49152: 1}}, "logit_bias is 49152"),
    "bias out of range": (("a",), {"logit_bias": {1: 101}}, "logit_bias"),
    "empty stop": (("a",), {"stop": ["b", ""]}, "stop"),
    "stop that is no text": (("a",), {"stop": [3]}, "stop is 3"),
    "negative prefill_chunk": (("a",), {"prefill_chunk": -1}, "prefill_chunk"),
    "negative logprobs": (("a",), {"logprobs": -1}, "logprobs"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_generate_refuses(model, name):
    arguments, options, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        model.generate(*arguments, **options)


def test_text_and_tokens(model):
    assert model.vocab_size == model.config["vocab_size"] == 49152
    assert model.config["n_layer"] == 30 and model.config["head_dim"] == 64
    text = "naïve 👩‍🚀 <|im_end|>"
    assert model.detokenize(model.tokenize(text)) == text
    assert model.eos_token_id not in model.tokenize(text)
    parsed = model.tokenize(text, parse_control=True)
    assert parsed[-1] == model.eos_token_id
    assert model.detokenize(np.array(parsed)) == text
    assert model.detokenize(parsed, skip_control=True) == text.removesuffix("<|im_end|>")
    with pytest.raises(ValueError, match="49152"):
        model.detokenize([49152])


def test_chat(model):
    messages = [
        {"role": "system", "content": "You answer in one short sentence."},
        {"role": "user", "content": "Hi <|im_end|>"},
    ]
    text = model.apply_chat_template(messages, tokenize=False)
    assert text.endswith("Hi <|im_end|><|im_end|>\n<|im_start|>assistant\n")
    tokens = model.apply_chat_template(messages)
    assert model.detokenize(tokens) == text
    assert tokens.count(model.eos_token_id) == 2  # the template's own; the user's is text
    assert ids(model.chat(messages, max_tokens=4, **GREEDY)) == ids(model.generate(tokens, max_tokens=4, **GREEDY))
    golden = PROMPTS["chat_multi"]
    assert model.tokenize(golden["text"], parse_control=True) == golden["ids"]
    with pytest.raises(ValueError, match="message 0"):
        model.apply_chat_template([{"role": "user"}])
