"""Reads the rollouts that a run has recorded: a few of each of a few steps, spread over the run."""

import json
import re
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from strop.support.errors import UserError
from strop.tracking.metrics_file import is_number
from strop.tracking.rollouts_file import read_table

MOST_STEPS = 12  # of a run
EACH = 2  # examples of each kind
MAX_ROWS = 512  # of a step: examples are chosen among its last ones
Row = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Recorded:
    """A step's rollouts: some examples as rows, and the rewards and lengths of all."""

    step: int
    examples: tuple[tuple[str, Row], ...]  # (best, worst or typical; the row)
    rewards: NDArray[np.float64]
    lengths: NDArray[np.float64]


class Recordings:
    """Reads a folder of rollouts repeatedly; unchanged files are not read again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.known: dict[tuple[str, int, int], Recorded] = {}

    def read(self, notes: list[str]) -> list[Recorded]:
        """At most `MOST_STEPS` steps, oldest first: the first, the last and evenly between.

        Files that cannot be read are left out and named in `notes`.
        """
        paths = [path for path in self.folder.glob("*.parquet") if path.suffixes == [".parquet"]]
        found: dict[tuple[str, int, int], Recorded] = {}
        for path in spread(sorted(paths, key=_by_numbers), MOST_STEPS):
            try:
                stat = path.stat()
                key = (path.name, stat.st_mtime_ns, stat.st_size)
                found[key] = self.known.get(key) or _recorded(path)
            except FileNotFoundError:
                continue  # a running run deletes files beyond training.keep_rollouts
            except (UserError, OSError) as error:
                notes.append(f"rollouts/{path.name} was left out: {error}.")
        self.known = found
        if not found:
            notes.append("There are no rollouts to show.")
        return list(found.values())


def pick_examples(rollouts: Sequence[Row]) -> list[tuple[str, Row]]:
    """`EACH` rollouts with the highest reward, the lowest, and nearest the median reward.

    Among equal rewards, rollouts of prompts that are not shown yet come first, then the later
    rollout, or for typical ones the rollout nearest to the median length. No rollout appears twice;
    rollouts without a reward are left out.
    """
    rows = [row for row in reversed(rollouts) if is_number(row.get("reward"))]  # newest first
    if not rows:
        return []
    prompts = {id(row): plain(row.get("prompt")) for row in rows}
    lengths = {id(row): len(plain(row.get("completion"))) for row in rows}
    middle = statistics.median(row["reward"] for row in rows)
    length = statistics.median(lengths.values())
    orders: dict[str, Callable[[Row], tuple[float, float]]] = {
        "best": lambda row: (-row["reward"], 0),
        "worst": lambda row: (row["reward"], 0),
        "typical": lambda row: (abs(row["reward"] - middle), abs(lengths[id(row)] - length)),
    }
    picked: list[tuple[str, Row]] = []
    shown: set[int] = set()
    known: set[str] = set()  # prompts
    for kind, order in orders.items():
        for _ in range(min(EACH, len(rows) - len(shown))):
            left = (row for row in rows if id(row) not in shown)
            row = min(left, key=lambda row: (order(row)[0], prompts[id(row)] in known, order(row)))
            picked.append((kind, row))
            shown.add(id(row))
            known.add(prompts[id(row)])
    return picked


def spread(steps: Sequence[T], most: int) -> list[T]:
    """At most `most` steps: the last, the first if there is room, and others evenly between."""
    count = min(most, len(steps))
    return [steps[i] for i in np.linspace(len(steps) - 1, 0, count).round().astype(int)[::-1]]


def plain(value: Any) -> str:
    """Text as it is; chat messages as `role: content`; anything else as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(m, dict) and "content" in m for m in value):
        return "\n\n".join(f"{m.get('role', '')}: {m['content']}" for m in value)
    return "" if value is None else json.dumps(value, ensure_ascii=False, default=str)


def _recorded(path: Path) -> Recorded:
    table = read_table(path)
    rows = table.slice(max(0, len(table) - MAX_ROWS)).to_pylist()
    numbers = [int(digits) for digits in re.findall(r"\d+", path.stem)]
    rewards, lengths = (_numbers(table, name) for name in ("reward", "length"))
    return Recorded(numbers[-1] if numbers else 0, tuple(pick_examples(rows)), rewards, lengths)


def _numbers(table: pa.Table, name: str) -> NDArray[np.float64]:
    """A column's numbers; empty when there is no such column."""
    values = table[name].to_pylist() if name in table.column_names else []
    return np.array([value for value in values if is_number(value)], np.float64)


def _by_numbers(path: Path) -> tuple[list[int], str]:
    """Sort key of file names by which step_9 comes before step_10."""
    return [int(digits) for digits in re.findall(r"\d+", path.stem)], path.stem
