"""Running the kvasir program, and what every answer of it must look like."""

import json
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
BINARY = os.environ.get("KVASIR_BIN", str(ROOT / "build" / "release" / "kvasir"))

# How the golden data was made: float32 everywhere.
F32 = ("--activations", "f32")  # and with it an f32 cache
GREEDY = ("--temperature", "0")


@dataclass
class Result:
    status: int  # as subprocess has it: negative for a signal
    out: bytes
    err: str


def run(*args, stdin=b"", env=None, stdout=subprocess.PIPE, program=(BINARY,)):
    process = subprocess.run(
        [*map(str, program), *map(str, args)],
        input=stdin,
        stdout=stdout,
        stderr=subprocess.PIPE,
        env={**os.environ, **(env or {})},
        timeout=120,
    )
    return Result(process.returncode, process.stdout, process.stderr.decode())


def output(*args, **options):
    """Standard output of a run that must succeed."""
    result = run(*args, **options)
    assert result.status == 0, result.err
    return result.out


def document(*args, **options):
    """The one JSON document of a run with --json: standard output holds nothing else, standard error nothing."""
    result = run(*args, "--json", **options)
    assert (result.status, result.err) == (0, "")
    assert result.out.endswith(b"\n") and result.out.count(b"\n") == 1
    return json.loads(result.out, parse_constant=reject_constant)


def reject_constant(name):
    raise ValueError(f"{name} is not JSON")


def the_error(result, status):
    """The message of a run that must fail: one line on standard error, nothing on standard output."""
    assert result.status == status, result
    assert not result.out
    assert result.err.startswith("kvasir: error: ") and result.err.endswith("\n"), result.err
    assert result.err.count("\n") == 1, result.err
    return result.err.removeprefix("kvasir: error: ").rstrip("\n")


def error(status, *args, **options):
    return the_error(run(*args, **options), status)


def read_safetensors(path):
    """Of each tensor its type, its shape and its bytes."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header, data = json.loads(content[8 : 8 + size]), content[8 + size :]
    header.pop("__metadata__", None)
    assert sum(info["data_offsets"][1] - info["data_offsets"][0] for info in header.values()) == len(data)
    return {name: (info["dtype"], info["shape"], data[slice(*info["data_offsets"])]) for name, info in header.items()}


def ids_text(ids):
    return ",".join(map(str, ids))


def tokenize(text, *args):
    """Ids of a text, given on standard input as bytes or str."""
    data = text if isinstance(text, bytes) else text.encode()
    line = output("tokenize", "--ids", *args, stdin=data).decode()
    assert line.endswith("\n")
    return [int(word) for word in line.strip().split(",")] if line != "\n" else []


def hear_interrupts():
    """In the child: a job in the background has SIGINT ignored, and the program goes on ignoring it then."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def wait_until_it_catches_interrupts(process):
    """Before that, while it loads the model, a signal ends it at once."""
    while True:
        (line,) = [x for x in Path(f"/proc/{process.pid}/status").read_text().splitlines() if x.startswith("SigCgt:")]
        if int(line.split()[1], 16) >> (signal.SIGINT - 1) & 1:
            return
        assert process.poll() is None
        time.sleep(0.01)
