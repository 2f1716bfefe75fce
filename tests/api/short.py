"""Short runs from Python, and their expected numbers."""

import json
from pathlib import Path
from typing import Any

from rewarding import even

import strop

SHORT: dict[str, Any] = {
    "rollout_max_tokens": 4, "sampling_num_prompts": 2, "sampling_num_rollouts": 4,
    "training_steps": 3, "training_lr": 1e-3, "training_save_every": 1, "evaluation_every": 0,
    "progress": False,
}  # fmt: skip
WORDS = [f"{name.replace('_', '.', 1)}={value}" for name, value in SHORT.items() if "_" in name]


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def lines(folder: Path) -> list[dict[str, Any]]:
    """The metrics of a run but for times and memory."""
    apart = ("perf/", "timing_s/")
    return [
        {k: v for k, v in line.items() if not k.startswith(apart) and k != "step_time"}
        for line in rows_of(folder / "metrics.jsonl")
    ]


def column(table: Any, name: str) -> list[Any]:
    """A column of a table, whichever kind it is."""
    found = table[name] if hasattr(table, "iloc") else table.column(name)
    return list(found.tolist() if hasattr(found, "tolist") else found.to_pylist())


def trained(lab: Any, recipe: str = "grpo", **changes: Any) -> strop.Run:
    """A short run of the lab's model on its rows, rewarded by a function of this process."""
    given = {"model": str(lab.model), "data": rows_of(lab.data), "reward": even, **SHORT}
    return strop.train(recipe, **{**given, **changes})
