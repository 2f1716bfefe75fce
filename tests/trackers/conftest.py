"""Tests against the real packages: each is collected if its package can be imported.

pip install -c constraints.txt -e '.[wandb,trackio,mlflow]' && pytest -n 0 tests/trackers
"""

import importlib.util
import json

import pytest

NAMES = ("wandb", "trackio", "mlflow")
collect_ignore = [f"test_{name}.py" for name in NAMES if importlib.util.find_spec(name) is None]


@pytest.fixture
def twice(runner, lab):
    """`twice(kind, folder)`: a run of two steps, then of one more; the lines of its metrics."""

    def go(kind, folder):
        raw = lab.raw(tracking={"to": [kind], "project": "strop-test", "samples": 2})
        raw["training"] = {**raw["training"], "steps": 2}
        first = runner.start(raw, folder)
        notes = runner.go(first).notes
        again = runner.resume(folder, training={"steps": 3})
        notes += runner.go(again).notes
        assert notes == []
        return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]

    return go
