import json
from pathlib import Path

import pytest

import kvasir

DATA = Path(__file__).parents[1] / "data"


def read_json(name):
    return json.loads((DATA / name).read_text())


@pytest.fixture(scope="session")
def model():
    """The default model with float32 activations and cache, as the golden data has it. Missing: a failure, not a skip."""
    return kvasir.Model(activations="f32", kv_type="f32")
