"""kvasir.Engine: whatever runs beside a request, it gives what Model.generate gives; nothing hangs, nothing is left over."""

import gc
import math
import signal
import struct
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from golden import read_json

import kvasir

PROMPTS = {prompt["name"]: prompt for prompt in read_json("smollm2/golden.json")["prompts"]}
CAPITAL = PROMPTS["capital"]["text"]
LONG = PROMPTS["long_photo"]["ids"]  # more than two blocks
GREEDY = {"temperature": 0}
DRAWN = {"temperature": 0.9, "top_k": 50, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.1, "ignore_eos": True}

# Requests of every kind: prompt and options.
MIXED = [
    (CAPITAL, {"max_tokens": 9, **GREEDY}),
    (PROMPTS["counting"]["text"], {"max_tokens": 24, "stop": [", 11", "zebra"], **GREEDY}),
    (LONG[:50], {"max_tokens": 6, "seed": 5, **DRAWN}),
    (LONG[:50], {"max_tokens": 8, "seed": 6, **DRAWN}),
    (LONG[:40], {"max_tokens": 5, "seed": 2**64 - 1, "presence_penalty": 0.5, "frequency_penalty": 0.2, **DRAWN}),
    (PROMPTS["hello1"]["ids"], {"max_tokens": 12, "seed": 1, "logprobs": 3}),
    (CAPITAL, {"max_tokens": 4, "logit_bias": {260: 100.0}, **GREEDY}),
    (CAPITAL, {"max_tokens": 0}),
]


@pytest.fixture
def engine(model):
    with kvasir.Engine(model, kv_blocks=64) as made:
        yield made


@pytest.fixture(scope="module")
def expected(model):
    """What each of MIXED gives by itself."""
    generations = [model.generate(prompt, **options) for prompt, options in MIXED]
    return [(list(generation), generation) for generation in generations]


def expect_as_alone(request, expected):
    tokens, generation = expected
    assert list(request) == tokens
    result = request.result()
    assert result.tokens == generation.tokens and result.text == generation.text
    assert (result.finish_reason, result.stop_reason) == (generation.finish_reason, generation.stop_reason)
    assert request.done


def expect_idle(engine):
    metrics = engine.metrics()
    assert (metrics.running, metrics.waiting, metrics.kv_blocks_referenced, engine._running.live) == (0, 0, 0, 0)
    assert metrics.kv_blocks_free + metrics.kv_blocks_cached == metrics.kv_blocks


def finish(engine):
    while engine.step():
        pass


@pytest.mark.parametrize("number", range(len(MIXED)))
def test_a_request_alone_gives_what_the_model_gives(engine, expected, number):
    prompt, options = MIXED[number]
    expect_as_alone(engine.submit(prompt, **options), expected[number])
    assert not engine.step()
    expect_idle(engine)


@pytest.mark.parametrize("options", [{}, {"step_tokens": 7, "max_running": 7}, {"max_running": 2}, {"share_prefixes": False},
                                     {"kv_blocks": 6}], ids=str)
def test_a_request_in_a_crowd_gives_what_the_model_gives(model, expected, options):
    engine = kvasir.Engine(model, **{"kv_blocks": 64, **options})
    requests = [engine.submit(prompt, **wanted) for prompt, wanted in MIXED]
    for request, alone in reversed(list(zip(requests, expected))):
        expect_as_alone(request, alone)
    expect_idle(engine)


def test_late_arrivals_change_nothing(engine, expected):
    requests = []
    for prompt, options in MIXED:
        requests.append(engine.submit(prompt, **options))
        engine.step()
    for request, alone in zip(requests, expected):
        expect_as_alone(request, alone)


def test_stepping_by_hand(engine):
    request = engine.submit(CAPITAL, max_tokens=3, **GREEDY)
    assert not request.done and engine.metrics().steps == 0
    assert [engine.step() for _ in range(4)] == [True, True, True, False]
    assert request.done and engine.metrics().steps == 3
    assert [token.id for token in request] == PROMPTS["capital"]["greedy64"][:3]
    metrics = engine.metrics()
    assert metrics.generated_tokens == 3 and metrics.computed_tokens == len(PROMPTS["capital"]["ids"]) + 2
    assert metrics.forward_seconds > 0


def test_choices_differ_and_the_first_is_that_of_one(engine, model):
    options = {"max_tokens": 7, "seed": 3, **DRAWN}
    alone = list(model.generate(LONG[:40], **options))
    request = engine.submit(LONG[:40], n=4, **options)
    found = {choice: [] for choice in range(4)}
    for choice, token in request:
        found[choice].append(token)
    assert found[0] == alone
    results = request.result()
    assert [result.tokens for result in results] == [[token.id for token in found[choice]] for choice in range(4)]
    assert len({tuple(result.tokens) for result in results}) == 4
    neighbours = [engine.submit(prompt, **wanted) for prompt, wanted in MIXED]
    fewer = engine.submit(LONG[:40], n=3, **options).result()
    assert [result.tokens for result in fewer] == [result.tokens for result in results[:3]]
    assert fewer[0].cached_tokens == 32
    for neighbour in neighbours:
        neighbour.result()
    expect_idle(engine)


def test_preemption_loses_nothing(model):
    engine = kvasir.Engine(model, kv_blocks=6, share_prefixes=False)
    wanted = [(LONG[:20], {"max_tokens": 40, "seed": seed, **DRAWN}) for seed in range(3)]
    alone = [list(model.generate(prompt, **options)) for prompt, options in wanted]
    requests = [engine.submit(prompt, **options) for prompt, options in wanted]
    assert [list(request) for request in requests] == alone
    preemptions = [request.result().preemptions for request in requests]
    assert preemptions[0] == 0 and sum(preemptions) == engine.metrics().preemptions >= 1
    expect_idle(engine)


def test_prefixes_are_shared_under_one_salt(engine):
    def cached(salt):
        return engine.submit(LONG[:40], max_tokens=1, cache_salt=salt).result().cached_tokens

    assert [cached(salt) for salt in ("", "", "a", "b", "a")] == [0, 32, 0, 0, 32]
    assert engine.metrics().kv_blocks_cached > 0


def test_lower_priority_numbers_go_first(model):
    engine = kvasir.Engine(model, kv_blocks=8, max_running=1)
    later, first = engine.submit("One", max_tokens=2, priority=1), engine.submit("Two", max_tokens=2, priority=-1)
    assert engine.step() and engine.step()
    assert first.done and not later.done


def test_cancelling_keeps_what_there_is(engine, model):
    alone = [token.id for token in model.generate(CAPITAL, max_tokens=30, ignore_eos=True, **GREEDY)]
    request = engine.submit(CAPITAL, max_tokens=30, ignore_eos=True, **GREEDY)
    waiting = engine.submit(CAPITAL, n=2)
    taken = [next(request).id for _ in range(3)]
    request.cancel()
    waiting.cancel()
    assert taken + [token.id for token in request] == request.result().tokens == alone[: len(request.result().tokens)]
    assert request.result().finish_reason == "cancelled"
    assert {result.finish_reason for result in waiting.result()} == {"cancelled"}
    request.cancel()  # over: nothing
    assert request.result().finish_reason == "cancelled"
    finish(engine)
    expect_idle(engine)
    finished = engine.submit(CAPITAL, max_tokens=1, **GREEDY)
    finished.result()
    finished.cancel()
    assert finished.result().finish_reason == "length"


def test_dropped_requests_are_cancelled_and_forgotten(engine):
    kept = engine.submit(CAPITAL, max_tokens=4, **GREEDY)
    dropped = [engine.submit("Once upon a time", n=2) for _ in range(20)]
    next(dropped[0])
    for _ in dropped[1]:
        break
    gone = [weakref.ref(request) for request in dropped]
    del dropped
    gc.collect()
    assert all(ref() is None for ref in gone)
    steps = engine.metrics().steps
    assert len(kept.result().tokens) == 4
    finish(engine)
    assert engine.metrics().steps - steps <= 4
    expect_idle(engine)


def test_a_request_keeps_its_engine_and_the_model(model):
    loaded = kvasir.Model(model.path, activations="f32")
    request = kvasir.Engine(loaded, kv_blocks=4).submit(CAPITAL, max_tokens=4, **GREEDY)
    del loaded
    gc.collect()
    assert [token.id for token in request] == PROMPTS["capital"]["greedy64"][:4]


# ---- Threads


def test_a_thread_of_its_own_runs_it(engine, expected):
    with engine.running() as same:
        assert same is engine
        requests = [engine.submit(prompt, **options) for prompt, options in MIXED]
        for request, alone in zip(requests, expected):
            expect_as_alone(request, alone)
        deadline = time.monotonic() + 30
        late = engine.submit(CAPITAL, max_tokens=2, **GREEDY)  # it sleeps by now, and wakes up
        while not late.done:
            assert time.monotonic() < deadline
            time.sleep(0.001)
    expect_idle(engine)


def test_stopping_and_starting_again_loses_nothing(engine, model):
    alone = list(model.generate(CAPITAL, max_tokens=40, ignore_eos=True, **GREEDY))
    request = engine.submit(CAPITAL, max_tokens=40, ignore_eos=True, **GREEDY)
    engine.stop()  # does not run: nothing
    engine.start()
    with pytest.raises(RuntimeError, match="runs already"):
        engine.start()
    tokens = [next(request)]
    engine.stop()
    tokens += [next(request), next(request)]  # steps itself
    with engine.running():
        tokens += request
    assert tokens == alone


@pytest.mark.parametrize("running", [True, False], ids=["its own thread", "whoever waits"])
def test_many_threads_submit_wait_and_cancel(model, expected, running):
    engine = kvasir.Engine(model, kv_blocks=24, max_running=5)
    if running:
        engine.start()

    def work(number):
        prompt, options = MIXED[number % len(MIXED)]
        if number % 5 == 4:
            request = engine.submit(LONG[:30], n=2, ignore_eos=True)
            next(request)
            request.cancel()
            assert {result.finish_reason for result in request.result()} == {"cancelled"}
        elif number % 5 == 3:
            list(zip(engine.submit(prompt, max_tokens=50), range(2)))  # and drops it
        else:
            expect_as_alone(engine.submit(prompt, **options), expected[number % len(MIXED)])
        return number

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(40), timeout=120)) == list(range(40))
    engine.stop()
    gc.collect()
    finish(engine)
    expect_idle(engine)


def test_model_and_engine_take_turns(engine, model):
    with engine.running():
        long_one = engine.submit("Once upon a time", max_tokens=900, ignore_eos=True)
        next(long_one)
        assert [token.id for token in model.generate(CAPITAL, max_tokens=5, **GREEDY)] == PROMPTS["capital"]["greedy64"][:5]
        assert not long_one.done
        long_one.cancel()


def test_the_gil_is_free_while_the_engine_runs(engine):
    for wait in ("result", "step"):
        request = engine.submit(LONG * 2, max_tokens=20, ignore_eos=True)
        stop, ticks = threading.Event(), []

        def tick():
            while not stop.wait(0.001):
                ticks.append(time.monotonic())

        thread = threading.Thread(target=tick)
        thread.start()
        begin = time.monotonic()
        if wait == "step":
            finish(engine)
        else:
            with engine.running():
                request.result()
        end = time.monotonic()
        stop.set()
        thread.join()
        assert len([t for t in ticks if begin < t < end - 0.01]) > 10


@pytest.mark.parametrize("running", [True, False])
@pytest.mark.parametrize("wait", [list, kvasir.Request.result], ids=["iterating", "result"])
def test_ctrl_c_ends_the_waiting(engine, running, wait):
    if running:
        engine.start()
    request = engine.submit("Once upon a time", max_tokens=900, ignore_eos=True)
    timer = threading.Timer(0.3, signal.raise_signal, [signal.SIGINT])
    timer.start()
    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        wait(request)
    assert time.monotonic() - started < 5
    request.cancel()
    assert request.result().finish_reason == "cancelled"


def test_the_interpreter_ends_while_an_engine_runs(model):
    code = (
        "import sys, kvasir\n"
        "engine = kvasir.Engine(kvasir.Model(sys.argv[1]), kv_blocks=64)\n"
        "engine.start()\n"
        "request = engine.submit('Once upon a time', max_tokens=900, ignore_eos=True)\n"
        "print(next(request).text)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, model.path], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout


# ---- Ends and errors


def test_closing_cancels_what_is_not_over(model):
    with kvasir.Engine(model, kv_blocks=8) as engine:
        finished, begun, waiting = (engine.submit(CAPITAL, max_tokens=n, **GREEDY) for n in (1, 9, 9))
        token = next(begun)
    assert finished.result().finish_reason == "length"
    assert begun.result().finish_reason == waiting.result().finish_reason == "cancelled"
    assert begun.result().tokens == [token.id]
    expect_idle(engine)
    engine.close()
    for call in (engine.step, engine.start, lambda: engine.submit(CAPITAL)):
        with pytest.raises(RuntimeError, match="closed"):
            call()


def test_too_many_that_wait_are_refused(model):
    engine = kvasir.Engine(model, kv_blocks=8, max_waiting=2)
    requests = [engine.submit(CAPITAL, max_tokens=2) for _ in range(2)]
    with pytest.raises(RuntimeError, match="2 requests wait already"):
        engine.submit(CAPITAL)
    engine.step()
    requests.append(engine.submit(CAPITAL, max_tokens=2))
    assert [len(request.result().tokens) for request in requests] == [2, 2, 2]
    expect_idle(engine)


@pytest.fixture
def tiny_gguf(monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "cli")
    import tiny_gguf

    return tiny_gguf


def test_guesses_change_no_token(engine, expected):
    requests = [engine.submit(prompt, **options, speculation="ngram") for prompt, options in MIXED]
    for request, alone in zip(requests, expected, strict=True):
        expect_as_alone(request, alone)
    metrics = engine.metrics()
    results = [request.result() for request in requests]
    assert (metrics.drafted, metrics.accepted) == tuple(
        sum(getattr(result, name) for result in results) for name in ("drafted", "accepted"))
    assert 0 < metrics.accepted < metrics.drafted and metrics.draft_seconds > 0


def test_a_draft_models_guesses_change_no_token(tiny_gguf, tmp_path):
    (tmp_path / "tiny.gguf").write_bytes(tiny_gguf.tiny_model())
    (tmp_path / "draft.gguf").write_bytes(tiny_gguf.tiny_model(matrices=tiny_gguf.Q8_0, feed_forward=64))
    model = kvasir.Model(tmp_path / "tiny.gguf")
    with kvasir.Engine(model, kv_blocks=32, draft_model=kvasir.Model(tmp_path / "draft.gguf")) as engine:
        for seed in range(8):
            options = {"max_tokens": 30, "temperature": seed / 8, "seed": seed, "ignore_eos": True,
                       "logit_bias": {97: 20.0, 98: 20.0}}  # two letters alone: guesses are right at times
            alone = list(model.generate("ab", **options))
            assert list(engine.submit("ab", **options, speculation="draft")) == alone
        metrics = engine.metrics()
        assert 0 < metrics.accepted < metrics.drafted
        expect_idle(engine)


def test_a_draft_model_is_refused_if_it_has_another_vocabulary_and_missed_if_it_is_wanted(engine, model, tiny_gguf, tmp_path):
    with pytest.raises(ValueError, match="no draft model"):
        engine.submit(CAPITAL, speculation="draft")
    (tmp_path / "tiny.gguf").write_bytes(tiny_gguf.tiny_model())
    with pytest.raises(ValueError, match="vocabulary"):
        kvasir.Engine(model, kv_blocks=4, draft_model=kvasir.Model(tmp_path / "tiny.gguf"))


def test_logits_that_are_not_finite_end_their_request_with_an_error(tiny_gguf, tmp_path):
    content = tiny_gguf.tiny_model()
    (tmp_path / "broken.gguf").write_bytes(content[:-4] + struct.pack("<f", math.nan))  # the last weight
    engine = kvasir.Engine(kvasir.Model(tmp_path / "broken.gguf"), kv_blocks=4)
    for n in (1, 2):
        request = engine.submit([1, 2], n=n)
        for wait in (list, next, kvasir.Request.result):
            with pytest.raises(RuntimeError, match="token 0 has the value nan"):
                wait(request)
        assert request.done
    expect_idle(engine)


REFUSED_OPTIONS = {
    "kv_blocks 0": ({"kv_blocks": 0}, "kv_blocks is 0"),
    "kv_bytes that hold no block": ({"kv_bytes": 10}, "kv_bytes is 10"),
    "negative kv_bytes": ({"kv_bytes": -1}, "kv_bytes is -1"),
    "max_running 0": ({"max_running": 0}, "max_running is 0"),
    "max_running as float": ({"max_running": 2.0}, "max_running is 2.0"),
    "max_waiting 0": ({"max_waiting": 0}, "max_waiting is 0"),
    "a path as draft_model": ({"draft_model": "x.gguf"}, "draft_model is 'x.gguf'"),
    "step_tokens below max_running": ({"step_tokens": 3, "max_running": 4}, "step_tokens is 3"),
    "unknown kv_type": ({"kv_type": "q8"}, "kv_type is 'q8'"),
}


@pytest.mark.parametrize(("options", "words"), REFUSED_OPTIONS.values(), ids=REFUSED_OPTIONS)
def test_engines_that_cannot_be_are_refused(model, options, words):
    with pytest.raises(ValueError, match=words):
        kvasir.Engine(model, **options)


def test_an_engine_needs_a_model(model):
    with pytest.raises(ValueError, match="must be a kvasir.Model"):
        kvasir.Engine(model.path)


REFUSED_REQUESTS = {
    "empty prompt": ("", {}, "prompt is empty"),
    "no tokens": ([], {}, "no tokens"),
    "id outside the vocabulary": ([49152], {}, "prompt holds 49152"),
    "what the pool never holds": ([1] * 128, {}, "128 tokens.*holds 128"),
    "n 0": ("x", {"n": 0}, "n is 0"),
    "n 129": ("x", {"n": 129}, "n is 129"),
    "n as float": ("x", {"n": 1.0}, "n is 1.0"),
    "priority beyond 32 bits": ("x", {"priority": 2**31}, "priority is"),
    "salt of another kind": ("x", {"cache_salt": 3}, "cache_salt is 3"),
    "unknown speculation": ("x", {"speculation": "model"}, "speculation is 'model', must be one of ngram, draft"),
    "temperature": ("x", {"temperature": -1}, "temperature"),
    "max_tokens": ("x", {"max_tokens": -1}, "max_tokens is -1"),
    "stop": ("x", {"stop": [""]}, "stop"),
    "logit_bias": ("x", {"logit_bias": {49152: 1}}, "logit_bias"),
}


@pytest.mark.parametrize(("prompt", "options", "words"), REFUSED_REQUESTS.values(), ids=REFUSED_REQUESTS)
def test_requests_that_can_never_run_are_refused_at_once(model, prompt, options, words):
    engine = kvasir.Engine(model, kv_blocks=8)
    with pytest.raises(ValueError, match=words):
        engine.submit(prompt, **options)
    assert not engine.step()
    expect_idle(engine)


def test_kv_type_is_the_models_unless_another_is_given(model):
    for kv_type in ("f16", "bf16"):
        other = kvasir.Model(model.path, activations="f32", kv_type=kv_type)
        alone = list(other.generate(LONG[:40], max_tokens=2, logprobs=1))
        assert list(kvasir.Engine(other, kv_blocks=64).submit(LONG[:40], max_tokens=2, logprobs=1)) == alone
        assert list(kvasir.Engine(model, kv_blocks=64, kv_type=kv_type).submit(LONG[:40], max_tokens=2, logprobs=1)) == alone
