"""kvasir as built for 64-bit Arm, under qemu: the bits of the kvasir that was built for this machine."""

import pytest
import tiny_gguf
from kvasir_cli import ROOT, document, error, output

EMULATOR = ROOT / "script" / "qemu-aarch64"
PROGRAM = ROOT / "build" / "aarch64" / "kvasir"
ARM = (EMULATOR, PROGRAM)
OLD_ARM = (EMULATOR, "-cpu", "cortex-a57", PROGRAM)  # has no dot product extension
KERNELS = ["scalar", "neon", "neondot"]
PROMPT = "Once upon a time there was"

@pytest.fixture(params=tiny_gguf.MODELS)
def model(request, tmp_path):
    path = tmp_path / request.param
    path.write_bytes(tiny_gguf.tiny_model(layers=2, **tiny_gguf.MODELS[request.param]))
    return path


@pytest.fixture
def tiny(tmp_path):
    path = tmp_path / "tiny.gguf"
    path.write_bytes(tiny_gguf.tiny_model())
    return path



def test_every_path_and_kernel_set_gives_the_bits_of_the_other_architecture(model):
    options = ("verify", "--quick", "-m", model)
    here, there = document(*options), document(*options, program=ARM)
    assert there["equal"]
    assert there["receipt"]["kernels"] == " ".join(KERNELS)
    assert there["prompts"] == here["prompts"]  # ids and hashes of logits
    for key in ("arithmetic", "model_sha256", "prompts_sha256", "logits_sha256"):
        assert there["receipt"][key] == here["receipt"][key], key


@pytest.mark.parametrize("kernels", KERNELS)
def test_logits_of_the_default_model(kernels):
    options = ("logits", "--sha256", PROMPT)
    assert output(*options, program=ARM, env={"KVASIR_ISA": kernels}) == output(*options)


def test_text_and_ids():
    text = "Grüße, 日本語 🙂 İstanbul\t١٢٣".encode() + bytes(range(256))
    ids = output("tokenize", "--ids", stdin=text)
    assert output("tokenize", "--ids", stdin=text, program=ARM) == ids
    assert output("detokenize", stdin=ids, program=ARM) == output("detokenize", stdin=ids)


def test_sampled_text_and_likelihood(tiny):
    for sampling in (["--seed", 7], ["--seed", 8, "--temperature", 1.3, "--top-p", 0.9, "--min-p", 0.01]):
        options = ("generate", "-m", tiny, PROMPT, "-n", 30, "--ignore-eos", *sampling)
        here, there = document(*options), document(*options, program=ARM)
        for key in ("tokens", "text", "fingerprint"):
            assert there[key] == here[key], key
    options = ("perplexity", "-m", tiny, PROMPT)
    assert document(*options, program=ARM) == document(*options)


def test_kernel_sets_are_those_of_the_processor(tiny):
    def refusal(kernels, program):
        return error(2, "logits", "-m", tiny, "x", "--sha256", program=program, env={"KVASIR_ISA": kernels})

    options = ("logits", "-m", tiny, PROMPT, "--sha256")
    assert output(*options, program=OLD_ARM) == output(*options)
    assert refusal("neondot", OLD_ARM).endswith("it has scalar, neon")
    assert refusal("avx2", ARM).endswith("it has scalar, neon, neondot")
