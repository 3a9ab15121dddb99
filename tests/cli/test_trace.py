"""kvasir trace: every step adds up, and shows what was shared, waited for and taken away."""

import json
import math
import re
import signal
import struct
import subprocess

import pytest
from kvasir_cli import BINARY, GREEDY, ROOT, document, error, hear_interrupts, output, run, wait_until_it_catches_interrupts
from tiny_gguf import CONTEXT, tiny_model

BLOCK = 16
COMMON = "a prefix that two full blocks hold"  # 34 tokens: the tiny model's are bytes
PROMPTS = [COMMON + end for end in ("", " one", " two")]
OPTIONS = ("-n", 12, "--ignore-eos", "--seed", 7)


def key(entry):
    return entry["request"], entry["choice"]


def table(entry):
    return list(zip(entry["blocks"], entry["references"]))


class Replay:
    """Follows the steps of a document, and checks each against those before it."""

    def __init__(self, trace):
        self.trace = trace
        self.prompts = {request["request"]: len(request["prompt_ids"]) for request in trace["requests"]}
        self.length = {}  # of each sequence in the cache
        self.drawn = {key(result): [] for result in trace["results"]}
        self.computed = {k: {} for k in self.drawn}  # position: how often
        self.lost = {k: 0 for k in self.drawn}  # preemptions
        self.first_cached = {}
        for number, step in enumerate(trace["steps"], 1):
            assert step["step"] == number
            self.follow(step)
        assert self.length == {}
        for result in trace["results"]:
            k = key(result)
            assert result["tokens"] == self.drawn[k]
            assert result["preemptions"] == self.lost[k]
            # A choice that joins the first finds its prompt computed; what had been cached is that of the first.
            if k[1] == 0:
                assert result["cached_tokens"] == self.first_cached.get(k, 0)

    def follow(self, step):
        pool = step["pool"]
        assert pool["free"] + pool["cached"] + pool["referenced"] == pool["blocks"] == self.trace["kv_blocks"]
        for one in step["preempted"]:
            del self.length[key(one)]
            self.lost[key(one)] += 1
        joining = {key(one) for one in step["admitted"]} - {key(one) for one in step["parts"]}
        for one in step["admitted"]:
            assert key(one) not in self.length
            self.length[key(one)] = one["cached_positions"]
            self.first_cached.setdefault(key(one), one["cached_positions"])
        present = {key(one) for one in step["parts"] + step["idle"]}
        assert present == set(self.length) - joining
        assert present.isdisjoint(key(one) for one in step["waiting"])
        users = {}
        for part in step["parts"] + step["idle"]:
            for block, references in table(part):
                users.setdefault(block, []).append(references)
        assert all(set(told) == {len(told)} for told in users.values())
        assert len(users) == pool["referenced"]
        for part in step["parts"]:
            self.compute(part, sum(key(one) == key(part) for one in step["drawn"]))
        assert sum(part["tokens"] for part in step["parts"]) <= self.trace["step_tokens"]
        drawing = {key(part) for part in step["parts"] if part["draws"]} | joining
        assert {key(one) for one in step["drawn"]} == drawing
        for one in step["drawn"]:
            self.drawn[key(one)].append(one["token"])
        for one in step["ended"]:
            del self.length[key(one)]

    def compute(self, part, drawn):
        k = key(part)
        assert part["first_position"] == self.length[k]
        assert part["last_position"] == part["first_position"] + part["tokens"] - 1
        assert len(part["blocks"]) >= part["last_position"] // BLOCK + 1
        known = part["tokens"] - part["drafted"]
        total = self.prompts[part["request"]] + len(self.drawn[k])
        assert part["draws"] == (self.length[k] + known == total)
        assert drawn <= part["drafted"] + 1
        begin = self.length[k]
        self.length[k] += known + max(drawn - 1, 0)  # right guesses stay
        before = self.computed[k]
        for position in range(begin, self.length[k]):
            before[position] = before.get(position, 0) + 1
            assert (before[position] > 1) <= (part["work"] == "recompute")
        if part["work"] == "decode":
            assert known == 1 and part["first_position"] >= self.prompts[part["request"]]


def trace(tiny, *args):
    result = document("trace", "-m", tiny, *args)
    return result, Replay(result)


def alone(tiny, prompt, *args):
    return document("generate", "-m", tiny, prompt, *args)


def test_text_is_that_of_generate_whatever_the_schedule(tiny):
    expected = [alone(tiny, prompt, *OPTIONS) for prompt in PROMPTS]
    for schedule in ([], ["--every", 2], ["--step-tokens", 8], ["--kv-blocks", 5, "--max-running", 2], ["--no-sharing"],
                     ["--max-running", 1], ["--kv-type", "f16", "--threads", 1]):
        result, _ = trace(tiny, *PROMPTS, *OPTIONS, *schedule)
        assert result["fingerprint"] == expected[0]["fingerprint"]
        for got, want in zip(result["results"], expected, strict=True):
            assert [got[k] for k in ("tokens", "text", "finish_reason", "stop_reason")] == \
                   [want[k] for k in ("tokens", "text", "finish_reason", "stop_reason")], schedule


@pytest.mark.parametrize("share", [True, False])
def test_every_prompt_position_is_computed_once_unless_it_was_cached(tiny, share):
    result, replay = trace(tiny, *PROMPTS, *OPTIONS, *([] if share else ["--no-sharing"]))
    for got in result["results"]:
        prompt = replay.prompts[got["request"]]
        new = prompt + len(got["tokens"]) - 1  # the last token's successor is not wanted
        assert replay.computed[key(got)] == {position: 1 for position in range(got["cached_tokens"], new)}
    computed = sum(sum(times.values()) for times in replay.computed.values())
    assert result["totals"]["computed_tokens"] == computed
    assert result["totals"]["preemptions"] == 0 and all(step["preempted"] == [] for step in result["steps"])


def test_sharing_shows_a_common_prefix(tiny):
    late = ("--every", 1, *OPTIONS)
    result, replay = trace(tiny, *PROMPTS, *late)
    assert [got["cached_tokens"] for got in result["results"]] == [0, 32, 32]
    together = next(step for step in result["steps"] if len(step["parts"]) == 3)
    first, second, third = map(table, together["parts"])
    assert first[:2] == second[:2] == third[:2] and [references for _, references in first[:2]] == [3, 3]
    assert {references for entry in (first, second, third) for _, references in entry[2:]} == {1}
    apart, _ = trace(tiny, *PROMPTS, *late, "--no-sharing")
    assert {r for step in apart["steps"] for part in step["parts"] for r in part["references"]} == {1}
    assert [got["cached_tokens"] for got in apart["results"]] == [0, 0, 0]
    shown = output("trace", "-m", tiny, *PROMPTS, *late).decode()
    assert "×3" in shown and "r2 (finds positions 0..31 in the cache)" in shown


def test_preemption_shows_in_a_small_pool(tiny):
    prompts, small = ["x" * 20, "y" * 20], ("--kv-blocks", 4, "-n", 30, "--ignore-eos", "--no-sharing")
    result, replay = trace(tiny, *prompts, *small)
    first, second = result["results"]
    assert first["preemptions"] == 0 and second["preemptions"] == result["totals"]["preemptions"] >= 1
    assert len(first["tokens"]) == len(second["tokens"]) == 30
    # Without sharing, each preemption costs all that had been computed.
    assert max(replay.computed[2, 0].values()) == 1 + second["preemptions"]
    assert replay.computed[1, 0] == {position: 1 for position in range(49)}
    assert any(part["work"] == "recompute" for step in result["steps"] for part in step["parts"])
    assert any(key(one) == (2, 0) for step in result["steps"] for one in step["waiting"])
    shown = output("trace", "-m", tiny, *prompts, *small).decode()
    assert "preempted, its blocks go to others: r2\n  waiting: r2\n" in shown and "  r2     recompute 0.." in shown


def test_evictions_are_those_of_the_totals(tiny):
    result, _ = trace(tiny, "a" * 40, "b" * 40, "c" * 40, "-n", 2, "--ignore-eos", "--kv-blocks", 4)
    assert sum(step["evictions"] for step in result["steps"]) == result["totals"]["evictions"] > 0


def test_right_guesses_stay_and_wrong_ones_go(tiny, tiny_draft):
    # Two letters alone are drawn, so that what is drawn repeats itself, but not always.
    options = ("--seed", 1, "--logit-bias", "97:50", "--logit-bias", "98:50", "--ignore-eos", "-n", 24)
    expected = [alone(tiny, prompt, *options) for prompt in PROMPTS]
    for speculate in ("ngram", f"draft:{tiny_draft}"):
        result, _ = trace(tiny, *PROMPTS, *options, "--speculate", speculate)
        assert [one["text"] for one in result["results"]] == [one["text"] for one in expected]
        for name in ("drafted", "accepted"):
            assert result["totals"][name] == sum(one[name] for one in result["results"])
        assert 0 < result["totals"]["accepted"] < result["totals"]["drafted"]
        text = output("trace", "-m", tiny, *PROMPTS, *options, "--speculate", speculate).decode()
        right, all_of_them = result["results"][0]["accepted"], result["results"][0]["drafted"]
        assert f"{right} of {all_of_them} guesses right" in text and ", draws " in text


def test_long_prompts_run_in_pieces_beside_the_others(tiny):
    result, _ = trace(tiny, "ab", "x" * 40, "-n", 8, "--ignore-eos", "--step-tokens", 8, "--every", 1, "--max-running", 2)
    pieces = [part for step in result["steps"] for part in step["parts"] if part["request"] == 2 and part["work"] == "prefill"]
    assert [piece["draws"] for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert len(pieces) == 6 and max(piece["tokens"] for piece in pieces) == 7
    both = [step for step in result["steps"] if len(step["parts"]) == 2]
    assert both and all(key(part) == (1, 0) and part["work"] == "decode" for step in both for part in step["parts"][:1])


def test_choices_share_their_prompt_until_they_write(tiny):
    result, replay = trace(tiny, "some prompt", *OPTIONS, "--choices", 3)
    assert [key(got) for got in result["results"]] == [(1, 0), (1, 1), (1, 2)]
    first, second = result["steps"][:2]
    assert [key(one) for one in first["drawn"]] == [(1, 0), (1, 1), (1, 2)] and len(first["parts"]) == 1
    assert second["copies"] == result["totals"]["copies"] == 2
    assert replay.computed[1, 1].keys() == set(range(11, 11 + 11))
    assert result["results"][0]["text"] == alone(tiny, "some prompt", *OPTIONS)["text"]
    assert len({got["text"] for got in result["results"]}) == 3


def test_choices_that_find_no_place_wait(tiny):
    result, _ = trace(tiny, "some prompt", *OPTIONS, "--choices", 3, "--max-running", 1)
    assert result["steps"][0]["waiting"] == []  # nobody could run yet but the first
    assert [key(one) for one in result["steps"][1]["waiting"]] == [(1, 1), (1, 2)]


def test_prompts_arrive_every_so_many_steps(tiny):
    result, _ = trace(tiny, "a", "b", "c", "-n", 9, "--ignore-eos", "--every", 4)
    assert {step["step"]: step["arrived"] for step in result["steps"] if step["arrived"]} == {1: [1], 5: [2], 9: [3]}
    apart, _ = trace(tiny, "a", "b", "-n", 2, "--ignore-eos", "--every", 100)  # and at once if nobody is there
    assert [step["arrived"] for step in apart["steps"]] == [[1], [], [2], []]


def test_text_has_every_step_and_every_answer(tiny):
    result, _ = trace(tiny, *PROMPTS, *OPTIONS)
    shown = output("trace", "-m", tiny, *PROMPTS, *OPTIONS).decode().split("\n")
    steps = [line for line in shown if line.startswith("step ")]
    assert len(steps) == len(result["steps"])
    for line, step in zip(steps, result["steps"]):
        pool = step["pool"]
        assert f"pool {pool['blocks']} = {pool['free']} free + {pool['cached']} cached + {pool['referenced']} used" in line
    texts = [json.loads(line) for line in shown if line.startswith('      "')]
    assert texts == [got["text"] for got in result["results"]]


def test_prompts_come_from_a_file_or_standard_input_one_a_line(tiny, tmp_path):
    (tmp_path / "prompts").write_text("one\n\ntwo")
    expected = output("trace", "-m", tiny, "one", "two", "-n", 2)
    assert output("trace", "-m", tiny, "-f", tmp_path / "prompts", "-n", 2) == expected
    assert output("trace", "-m", tiny, "-n", 2, stdin=b"one\ntwo\n") == expected


def test_no_tokens_wanted_are_no_steps(tiny):
    result, _ = trace(tiny, "one", "-n", 0)
    assert result["steps"] == [] and result["results"][0]["tokens"] == []


def test_the_default_model_gives_what_generate_gives():
    prompt = "The capital of France is"
    result = document("trace", prompt, "Once", "-n", 6, *GREEDY)
    assert result["results"][0]["text"] == document("generate", prompt, "-n", 6, *GREEDY)["text"]


def test_the_example_in_the_documentation_is_what_its_command_prints():
    page = (ROOT / "docs" / "engine.md").read_text()
    command, shown = re.search(r"```sh\n(.*?)```\n\n```\n(.*?)```", page, re.S).groups()
    result = subprocess.run(["bash", "-c", command.replace("build/release/kvasir", BINARY)], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout == shown


def test_what_can_never_fit_is_refused_before_anything_is_shown(tiny):
    for args in (["x" * CONTEXT], ["short", "x" * CONTEXT, "--every", 9], ["short", "x" * 32, "--kv-blocks", 2]):
        message = error(1, "trace", "-m", tiny, *args)
        assert "prompt and answer together must fit" in message


def test_a_request_that_fails_is_shown_and_fails_the_command(tmp_path):
    model = tmp_path / "broken.gguf"
    model.write_bytes(tiny_model()[:-4] + struct.pack("<f", math.nan))  # the last weight
    shown = run("trace", "-m", model, "ab", "cd")
    assert (shown.status, shown.err.count("\n")) == (1, 1) and "request 1: the model's logits" in shown.err
    assert "  r1     prefill   0..1      fails " in shown.out.decode()
    result = run("trace", "-m", model, "ab", "--json")
    (answer,) = json.loads(result.out)["results"]
    assert result.status == 1 and answer["finish_reason"] is None and "nan" in answer["error"] and answer["tokens"] == []


def test_interrupt_ends_all_requests_and_completes_the_document():
    options = ["trace", "--json", "--ignore-eos", "-n", "600", "Once", "Twice"]
    process = subprocess.Popen([BINARY, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=hear_interrupts)
    wait_until_it_catches_interrupts(process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, b"")
    assert [got["finish_reason"] for got in json.loads(out)["results"]] == ["cancelled"] * 2
