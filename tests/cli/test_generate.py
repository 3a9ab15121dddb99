"""kvasir generate: the golden text, the same tokens on every path, and where generation ends."""

import json
import signal
import subprocess

import pytest
import tiny_gguf
from kvasir_cli import (BINARY, F32, GREEDY, document, error, hear_interrupts, ids_text, output, run, tokenize,
                        wait_until_it_catches_interrupts)

PROMPT = "The capital of France is"


def test_json_names_everything_and_counts_the_prompt_as_tokenize_does():
    result = document("generate", PROMPT, "-n", 3)
    assert result["prompt_ids"] == tokenize(PROMPT)
    assert result["prompt_tokens"] == len(tokenize(PROMPT)) == 5
    assert result["completion_tokens"] == len(result["tokens"]) == 3
    assert result["text"].encode() == output("detokenize", ids_text(result["tokens"]))
    assert (result["finish_reason"], result["stop_reason"], result["seed"]) == ("length", None, 0)
    assert result["model"].endswith(".gguf") and result["fingerprint"]
    assert set(result["timings"]) == {"load_s", "prefill_s", "decode_s", "prefill_tok_s", "decode_tok_s"}
    assert all(value > 0 for value in result["timings"].values())


def test_the_last_of_repeated_options_counts():
    repeated = ["-n", 9, "-n", 3, "--temperature", 2, "--temperature", 0.5, "--seed", 8, "--seed", 4, "--kv-type", "f16", "--kv-type", "f32"]
    once = ["-n", 3, "--temperature", 0.5, "--seed", 4, "--kv-type", "f32"]
    first, second = document("generate", PROMPT, *repeated), document("generate", PROMPT, *once)
    assert [first[key] for key in ("tokens", "seed", "fingerprint")] == [second[key] for key in ("tokens", "seed", "fingerprint")]
    assert first["completion_tokens"] == 3


@pytest.mark.parametrize("name", ["counting", "chat_multi"])
def test_greedy_continuation_is_the_golden_one(golden, name):
    (prompt,) = [p for p in golden["prompts"] if p["name"] == name]
    result = document("generate", *GREEDY, *F32, "--ignore-eos", "-n", 64, "--tokens", ids_text(prompt["ids"]))
    assert result["tokens"] == prompt["greedy64"]
    shown = output("detokenize", "--skip-control", ids_text(prompt["greedy64"]))
    assert result["text"].encode() == shown


def test_streamed_text_is_the_text_of_the_document():
    options = ("generate", "Ein paar Wörter und ein 🙂:", "-n", 24, "--seed", 5)
    assert output(*options).decode() == document(*options)["text"]


def test_prompt_from_file_and_standard_input_equal_the_argument(tmp_path):
    (tmp_path / "prompt").write_text(PROMPT)
    options = ("generate", "-n", 4)
    expected = output(*options, PROMPT)
    assert output(*options, "-f", tmp_path / "prompt") == expected
    assert output(*options, stdin=PROMPT.encode()) == expected
    assert output(*options, "--tokens", ids_text(tokenize(PROMPT))) == expected


def test_same_tokens_on_every_path():
    options = ("generate", PROMPT, "-n", 6, "--seed", 11)
    expected = document(*options)["tokens"]
    for path in (["--no-cache"], ["--prefill-chunk", 1], ["--prefill-chunk", 2], ["--prefill-chunk", 0],
                 ["--threads", 1], ["--threads", 3]):
        assert document(*options, *path)["tokens"] == expected, path
    scalar = document(*options, env={"KVASIR_ISA": "scalar"})
    assert (scalar["kernels"], scalar["tokens"]) == ("scalar", expected)


def test_guesses_change_no_token(tiny, tiny_draft):
    options = ("generate", "-m", tiny, "over and over and over", "--ignore-eos", "-n", 30, "--logprobs", 1)
    for sampling in (GREEDY, ("--temperature", 0.9, "--seed", 3, "--presence-penalty", 0.2)):
        plain = document(*options, *sampling)
        assert "speculation" not in plain
        for speculate in ("ngram", f"draft:{tiny_draft}"):
            guessed = document(*options, *sampling, "--speculate", speculate)
            assert [guessed[key] for key in ("tokens", "text", "logprobs")] == [
                plain[key] for key in ("tokens", "text", "logprobs")]
            assert 0 <= guessed["speculation"]["accepted"] <= guessed["speculation"]["drafted"]
            stats = run(*options[:4], *options[4:-2], *sampling, "--speculate", speculate, "--stats").err
            if guessed["speculation"]["drafted"]:
                assert "{accepted} of {drafted} guesses right".format(**guessed["speculation"]) in stats


def test_a_draft_model_must_be_there_and_know_the_same_tokens(tiny, tmp_path):
    none = tmp_path / "none.gguf"
    assert "cannot open" in error(1, "generate", "-m", tiny, "x", "--speculate", f"draft:{none}")
    assert "vocabulary" in error(2, "generate", "x", "--speculate", f"draft:{tiny}")


def test_unknown_kernel_set_is_an_error():
    assert "KVASIR_ISA" in error(2, "generate", PROMPT, env={"KVASIR_ISA": "quantum"})


def test_seed_decides_the_tokens(tiny):
    def tokens(*seed):
        return document("generate", "-m", tiny, "seed", "-n", 20, "--ignore-eos", *seed)["tokens"]

    zero = tokens("--seed", 0)
    assert zero == tokens("--seed", 0) == tokens()
    one, most = tokens("--seed", 1), tokens("--seed", 2**64 - 1)
    assert zero != one and zero != most and one != most


def test_random_seed_is_reported_and_reproduces_the_text(tiny):
    options = ("generate", "-m", tiny, "seed", "-n", 20, "--ignore-eos")
    first, second = (document(*options, "--seed", "random") for _ in range(2))
    assert first["seed"] != second["seed"]
    again = document(*options, "--seed", first["seed"])
    assert (again["seed"], again["tokens"], again["text"]) == (first["seed"], first["tokens"], first["text"])


def test_stop_string_ends_the_text_before_it():
    options = ("generate", *GREEDY, "One, two, three, four,", "-n", 12)
    text = document(*options)["text"]
    stop = text[7:13]  # over the borders of tokens
    stopped = document(*options, "--stop", "not in the text", "--stop", stop)
    assert stopped["text"] == text[: text.index(stop)]
    assert (stopped["finish_reason"], stopped["stop_reason"]) == ("stop", stop)
    assert output(*options, "--stop", stop).decode() == stopped["text"]


def test_end_token_stops_and_is_reported():
    chat = "<|im_start|>user\nSay hi.<|im_end|>\n<|im_start|>assistant\n"
    result = document("generate", *GREEDY, "--parse-control", chat, "-n", 64)
    assert (result["finish_reason"], result["stop_reason"]) == ("stop", "<|im_end|>")
    assert result["tokens"][-1] == 2 and "<|im_end|>" not in result["text"]


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_so_many_tokens_as_asked_for(tiny, count):
    result = document("generate", "-m", tiny, "some", "-n", count, "--ignore-eos")
    assert (len(result["tokens"]), result["finish_reason"]) == (count, "length")


def test_context_is_filled_and_never_exceeded(tiny):
    def run_with(prompt_tokens, *options):
        ids = ids_text([97] * prompt_tokens)
        return run("generate", "-m", tiny, "--ignore-eos", "--tokens", ids, "--json", *options)

    for model_or_context in ([], ["--context", 64]):
        assert b'"completion_tokens":1,' in run_with(63, *model_or_context).out
        assert b'"completion_tokens":4,' in run_with(60, "-n", 10, *model_or_context).out
    assert b'"completion_tokens":2,' in run_with(30, "--context", 32).out


@pytest.mark.parametrize("prompt_tokens", [64, 65, 10_000])
def test_prompt_that_fills_the_context_is_refused_with_both_numbers(prompt_tokens):
    message = error(1, "generate", "--context", 64, "--tokens", ids_text([504] * prompt_tokens))
    assert str(prompt_tokens) in message and "64" in message


def test_context_limit_holds_for_the_real_model():
    result = document("generate", "--context", 64, "--ignore-eos", "--tokens", ids_text([504] * 63))
    assert (len(result["tokens"]), result["finish_reason"]) == (1, "length")


def test_empty_prompt_begins_with_bos_or_is_refused(tiny, tmp_path):
    assert "prompt is empty" in error(2, "generate", "-m", tiny, "")
    with_bos = tmp_path / "bos.gguf"
    with_bos.write_bytes(tiny_gguf.tiny_model(bos=tiny_gguf.IM_START))
    assert document("generate", "-m", with_bos, "", "-n", 2)["prompt_ids"] == [tiny_gguf.IM_START]


def test_control_spellings_in_a_prompt_are_text_unless_asked_for():
    assert 2 not in document("generate", "a<|im_end|>b", "-n", 0)["prompt_ids"]
    assert 2 in document("generate", "--parse-control", "a<|im_end|>b", "-n", 0)["prompt_ids"]


def test_text_after_a_repeatable_option_is_the_prompt(tiny):
    result = document("generate", "-m", tiny, "-n", 3, "--stop", "x", "--logit-bias", "65:100", "prompt")
    assert bytes(result["prompt_ids"]) == b"prompt"
    assert result["text"] == "AAA"


def test_logprobs_and_explain_describe_each_token(tiny):
    result = document("generate", "-m", tiny, "p", "-n", 3, "--logprobs", 2, "--explain", "--top-k", 7)
    assert [entry["id"] for entry in result["logprobs"]] == result["tokens"]
    assert all(len(entry["top"]) == 2 and entry["logprob"] < 0 for entry in result["logprobs"])
    assert [trace["kept_top_k"] for trace in result["explain"]] == [7, 7, 7]
    for trace, token in zip(result["explain"], result["tokens"]):
        assert max(trace["candidates"], key=lambda candidate: candidate["score"])["id"] == token
    plain = run("generate", "-m", tiny, "p", "-n", 3, "--explain", "--stats", "--top-k", 7)
    assert plain.out.decode() == result["text"]
    assert len(plain.err.splitlines()) == 4 and plain.err.count("top-k 7") == 3


def test_interrupt_keeps_the_text_so_far_and_exits_130():
    options = ["generate", "--seed", "3", "--ignore-eos", "Once upon a time"]
    process = subprocess.Popen([BINARY, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0, preexec_fn=hear_interrupts)
    begun = process.stdout.read(20)
    process.send_signal(signal.SIGINT)
    rest, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, b"")
    text = (begun + rest).decode()
    whole = document(*options, "-n", 12)["text"]
    assert text.startswith(whole) or (text and whole.startswith(text))


def test_interrupt_completes_the_document():
    options = ["generate", "--json", "--ignore-eos", "Once"]
    process = subprocess.Popen([BINARY, *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=hear_interrupts)
    wait_until_it_catches_interrupts(process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (130, b"")
    result = json.loads(out)
    assert result["finish_reason"] == "cancelled" and len(result["tokens"]) >= 1
