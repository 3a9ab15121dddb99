"""Wrong usage: exit status 2 and one line that names the field, whatever the command."""

import pytest
from kvasir_cli import error, output

# Arguments, and the words that the message must have.
CASES = [
    ([], "no command"),
    (["frobnicate"], "no command frobnicate"),
    (["--frobnicate"], "--frobnicate"),
    (["generate", "--frobnicate", "x"], "--frobnicate"),
    (["generate", "one", "two"], "two"),
    (["tokenize", "--tokens", "1"], "--tokens"),
    (["inspect", "--seed", "1"], "--seed"),
    *[(["generate", "x", "--temperature", value], "temperature") for value in ("-1", "nan", "1e400", "abc", "")],
    *[(["generate", "x", "--top-p", value], "top") for value in ("1.5", "-0.1", "nan")],
    *[(["generate", "x", "--top-k", value], "top") for value in ("-2", "1.5", "many")],
    *[(["generate", "x", "--min-p", value], "min") for value in ("2", "-1", "nan")],
    *[(["generate", "x", "--repetition-penalty", value], "penalty") for value in ("0", "-1", "inf")],
    *[(["generate", "x", f"--{kind}-penalty", "nan"], f"{kind}_penalty") for kind in ("presence", "frequency")],
    (["generate", "x", "--penalty-window", "-1"], "window"),
    *[(["generate", "x", "--logit-bias", value], "logit_bias")
      for value in ("258:1", "-1:1", "5", "x:1", "5:", "5:x", "5:nan", ":", "5:1000", "99999999999:1")],
    (["generate", "x", "--stop", ""], "stop"),
    *[(["generate", "x", "--seed", value], "seed") for value in ("-1", str(2**64), "1.5", "x", "")],
    *[(["generate", "x", "-n", value], "max") for value in ("-1", "x", "", "9" * 20)],
    *[(["generate", "x", "--context", value], "context") for value in ("-1", "65", "x")],
    *[([command, "x x", "--prefill-chunk", "-1"], "prefill_chunk") for command in ("generate", "logits", "perplexity")],
    *[([command, "x x", "--threads", value], "threads")
      for command in ("generate", "logits", "perplexity") for value in ("-1", "1025", "x")],
    *[(["generate", "x", "--logprobs", value], "logprobs") for value in ("-1", "x")],
    (["generate", "x", "--kv-type", "q8"], "none of bf16, f16, f32"),
    (["generate", "x", "--activations", "f8"], "none of default, f32"),
    *[([command, "--tokens", ids], word)
      for command in ("generate", "logits", "perplexity")
      for ids, word in (("1,258", "258"), ("1,-1", "-1"), ("1,99999999999", "99999999999"), ("1,x", '"x"'))],
    (["generate", "--tokens", ","], "no tokens"),
    *[([command, "x", "-f", "/dev/null"], "-f") for command in ("generate", "logits", "perplexity", "tokenize")],
    *[([command, "x", "--tokens", "1"], "--tokens") for command in ("generate", "logits", "perplexity")],
    (["generate", "--tokens", "1", "-f", "/dev/null"], "--tokens"),
    (["generate", ""], "prompt is empty"),
    *[([command, "x", "--speculate", value], "neither ngram nor draft:FILE")
      for command in ("generate", "trace") for value in ("x", "draft:", "ngrams")],
    (["generate", "x", "--speculate", "ngram", "--no-cache"], "not both"),
    (["logits", "x", "--top", "-1"], "top"),
    (["logits", "--tokens", ","], "no tokens"),
    *[(["perplexity", "some text", "--window", value], "window") for value in ("-1", "1", "65", "x")],
    (["perplexity", "x"], "two tokens"),
    *[(["detokenize", ids], word) for ids, word in (("258", "258"), ("-1", "-1"), ("1,x", '"x"'), ("1;2", '"1;2"'))],
    (["chat", "words"], "words"),
    (["chat", "--json"], "--json"),
    *[(["trace", "x", option, value], words) for option, value, words in (
        ("--every", "-1", "every is -1"), ("--choices", "0", "choices is 0"), ("--choices", "129", "choices is 129"),
        ("--kv-blocks", "0", "kv_blocks is 0"), ("--max-running", "0", "max_running is 0"),
        ("--step-tokens", "7", "step_tokens is 7"), ("--context", "32", "--context"), ("--no-cache", "", "--no-cache"))],
    (["trace", ""], "prompt is empty"),
    (["trace", "-f", "/dev/null"], "there is no prompt"),
    (["trace", "x", "-f", "/dev/null"], "-f"),
    (["verify", "words"], "words"),
    (["verify", "--no-cache"], "--no-cache"),
    (["verify", "--kv-type", "q8"], "none of bf16, f16, f32"),
    *[(["verify", "--threads", value], "threads") for value in ("-1", "1025", "x")],
]


@pytest.mark.parametrize(("arguments", "words"), CASES, ids=[" ".join(arguments) for arguments, _ in CASES])
def test_is_one_line_that_names_the_field(tiny, arguments, words):
    if arguments and not arguments[0].startswith("--") and arguments[0] != "frobnicate":
        arguments = [arguments[0], "-m", tiny, *arguments[1:]]
    assert words in error(2, *arguments)


@pytest.mark.parametrize("options", [["--temperature", "-1"], ["--seed", "x"], ["--stop", ""]])
def test_chat_refuses_wrong_parameters_too(tiny, options):
    assert options[0].strip("-") in error(2, "chat", "-m", tiny, "--system", "x", *options, stdin=b"Hello\n")


def test_line_breaks_of_an_argument_do_not_break_the_line():
    assert "two lines" in error(2, "two\nlines")


@pytest.mark.parametrize("command", ["generate", "chat", "tokenize", "detokenize", "logits", "perplexity", "inspect",
                                     "bench", "verify"])
def test_help_tells_the_options(command):
    assert command in output("--help").decode()
    assert "--model" in output(command, "--help").decode()


def test_version():
    assert output("--version").decode().startswith("kvasir 0.")
