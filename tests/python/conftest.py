import signal

import pytest

import kvasir


@pytest.fixture(scope="session", autouse=True)
def interrupts_are_heard():
    """A job in the background is started with SIGINT ignored; the tests that raise it want Python's own handler."""
    previous = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, previous)


@pytest.fixture(scope="session")
def model():
    """The default model with float32 activations and cache, as the golden data has it. Missing: a failure, not a skip."""
    return kvasir.Model(activations="f32")
