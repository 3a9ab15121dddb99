import json

import pytest
import tiny_gguf
from kvasir_cli import DATA


@pytest.fixture(scope="session")
def golden():
    """SmolLM2's numbers from an independent implementation."""
    return json.loads((DATA / "smollm2" / "golden.json").read_text())


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    """Path of a tiny model, for what does not depend on the model."""
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    path.write_bytes(tiny_gguf.tiny_model())
    return path


@pytest.fixture(scope="session")
def tiny_base(tmp_path_factory):
    """The tiny model without a chat template."""
    path = tmp_path_factory.mktemp("models") / "base.gguf"
    path.write_bytes(tiny_gguf.tiny_model(chat_template=None))
    return path


@pytest.fixture(scope="session")
def tiny_draft(tmp_path_factory):
    """Path of a model whose guesses for the tiny one are right at times: the same weights in fewer bits."""
    path = tmp_path_factory.mktemp("models") / "draft.gguf"
    path.write_bytes(tiny_gguf.tiny_model(matrices=tiny_gguf.Q8_0, feed_forward=64))
    return path
