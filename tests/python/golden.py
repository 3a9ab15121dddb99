"""Reading the data of independent implementations in tests/data."""

import json
from pathlib import Path

DATA = Path(__file__).parents[1] / "data"


def read_json(name):
    return json.loads((DATA / name).read_text())
