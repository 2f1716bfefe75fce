"""Reading a run's folder, also while it is running: metrics, configuration, last rollouts."""

import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from strop.errors import UserError

MAX_ROLLOUTS = 512  # rows kept, from the last steps
MAX_FILES = 8  # rollout files opened


@dataclass(frozen=True)
class Run:
    """What a run has written so far."""

    name: str
    metrics: tuple[dict[str, Any], ...]  # one per line of metrics.jsonl
    config: str | None  # the text of config.toml
    rollouts: tuple[dict[str, Any], ...]  # rows of the last steps, oldest first
    notes: tuple[str, ...]  # what is missing or was left out, in sentences

    def recorded(self) -> tuple[str, ...]:
        """Names of all numbers recorded, in the order in which they first appear."""
        pairs = (pair for line in self.metrics for pair in line.items())
        return tuple(dict.fromkeys(key for key, v in pairs if is_number(v) and key != "step"))

    def series(self, key: str) -> tuple[list[int], list[float]]:
        """Steps and values of a number; steps without a finite value are left out.

        A step written twice (two lines, as after an evaluation) has the later value.
        """
        found = {m["step"]: float(m[key]) for m in self.metrics if is_number(m.get(key))}
        steps = sorted(found)
        return steps, [found[step] for step in steps]


def read_run(folder: Path) -> Run:
    """Read a run's folder; a missing file or a cut last line becomes a note.

    Raises UserError for what is not a run's folder and for a metrics line (not the last) that is
    not a JSON object with a whole `step`.
    """
    path = folder / "metrics.jsonl"
    if not path.is_file():
        raise UserError(
            f"{folder} is not a run: it has no metrics.jsonl; give the folder that training wrote."
        )
    notes: list[str] = []
    metrics = _read_metrics(path, notes)
    config = folder / "config.toml"
    if not config.is_file():
        notes.append("There is no config.toml.")
    text = config.read_text(encoding="utf-8") if config.is_file() else None
    rollouts = _read_rollouts(folder / "rollouts", notes)
    return Run(folder.resolve().name, tuple(metrics), text, tuple(rollouts), tuple(notes))


def is_number(value: Any) -> bool:
    """True for a finite number; not for True and False."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _read_metrics(path: Path, notes: list[str]) -> list[dict[str, Any]]:
    *lines, rest = path.read_text(encoding="utf-8", errors="replace").split("\n")
    if rest:
        lines.append(rest)
    metrics: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
        except json.JSONDecodeError as error:
            if rest and number == len(lines):
                notes.append("The last line of metrics.jsonl is cut off and was left out.")
                continue
            raise UserError(f"{path}, line {number} is not JSON ({error.msg}); mend it.") from error
        if not isinstance(entry, dict) or type(entry.get("step")) is not int:
            raise UserError(
                f"{path}, line {number} is not an object with a whole number `step`; remove it."
            )
        metrics.append(entry)
    if not metrics:
        notes.append("No step has been recorded yet.")
    return metrics


def _read_rollouts(folder: Path, notes: list[str]) -> list[dict[str, Any]]:
    """Rows of the newest files, oldest first."""
    rows: list[dict[str, Any]] = []
    for path in sorted(folder.glob("*.parquet"), key=_by_numbers, reverse=True)[:MAX_FILES]:
        try:
            table = pq.read_table(path)
        except (pa.ArrowException, OSError):
            notes.append(f"rollouts/{path.name} cannot be read (half written?) and was left out.")
            continue
        rows = table.slice(max(0, len(table) - MAX_ROLLOUTS + len(rows))).to_pylist() + rows
        if len(rows) >= MAX_ROLLOUTS:
            break
    if not rows:
        notes.append("There are no rollouts to show.")
    return rows


def _by_numbers(path: Path) -> tuple[list[int], str]:
    """Order of file names in which step_9 comes before step_10."""
    return [int(digits) for digits in re.findall(r"\d+", path.stem)], path.stem
