"""Reads from a run's folder what a plan is made of."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from strop.planning.course import Ints
from strop.report.about import parsed
from strop.report.recorded import spread
from strop.support.errors import UserError
from strop.support.files import flat, text_of
from strop.tracking.metrics_file import is_number, read_metrics
from strop.tracking.rollouts_file import read_table, rollouts_files

WARM = 3  # first steps of a run, which are skipped: they load and compile
NEEDED = (
    "timing_s/rollout", "timing_s/update", "step_time", "num_tokens", "completions/mean_length",
    "completions/max_length", "data/rollouts_sampled", "data/rollouts_kept",
)  # fmt: skip
AGE = "sampling/age_steps"  # present for tokens that an engine drew, absent for given answers
MEASURED = "perf/decode/passes"  # present when the engine measures its passes
COLLECTING = "perf/collecting_s"  # present when one process draws while another trains
PUT_OFF = "partial/groups_left"  # present when a step does not wait for its longest answers
OF_GROUP = re.compile(r"algorithm\.sampling\..*\.num_rollouts")
MOST_FILES = 100  # maximum of rollout files that are read, spread over the run


@dataclass(frozen=True)
class Recorded:
    """A run: its steps' metrics, its settings, and the lengths of each recorded step by group.

    measured: whether its engine measured its passes. apart: whether another process trained
    meanwhile.
    """

    folder: Path
    steps: list[dict[str, float]]
    settings: Mapping[str, int]  # only those that are whole numbers
    groups: dict[int, list[Ints]]
    measured: bool
    apart: bool

    @property
    def slots(self) -> int:
        """The number of rows for which its engine has room."""
        return int(self.settings.get("training.num_slots", 512))

    def mean(self, name: str) -> float:
        """Of a metric over the steps."""
        return float(np.mean([step.get(name, 0.0) for step in self.steps]))

    def total(self, name: str) -> float:
        """Of a metric over the steps."""
        return sum(step.get(name, 0.0) for step in self.steps)

    @property
    def prompt(self) -> float:
        """Mean tokens of a prompt: tokens of all sequences without those of the answers."""
        whole = self.mean("tokens") / self.mean("data/rollouts_kept")
        return max(whole - self.mean("completions/mean_length"), 0.0)

    @property
    def size(self) -> int:
        """The number of answers to a prompt."""
        sizes = [len(group) for groups in self.groups.values() for group in groups]
        if sizes:
            return max(round(float(np.mean(sizes))), 1)
        given = [n for path, n in self.settings.items() if OF_GROUP.fullmatch(path)]
        return int(given[0]) if given else 1


def read_run(folder: Path) -> Recorded:
    """Read a run. Raises UserError for a folder that is not a run, and for a run with too little
    recorded.
    """
    lines = [line for line in read_metrics(folder) if line["step"] > 0]
    measured = any(line.get(MEASURED) for line in lines)
    apart = any("asynchronous/collector_idle" in line for line in lines)
    if not measured:
        _check_steps(folder, lines, apart)
    before = 0.0
    for line in lines:
        so_far = line["num_tokens"] if is_number(line.get("num_tokens")) else before
        before, line["tokens"] = so_far, so_far - before
    steps = [line for line in lines[min(WARM, len(lines) // 4) :] if _drew(line, measured)]
    if not steps:
        raise UserError(
            f"{folder} has no step in which answers were drawn and timed: give a run of a method "
            "that samples, with at least one step"
        )
    path = folder / "config.toml"
    raw = parsed(text_of(path, "the configuration")) if path.is_file() else {}
    settings = {name: value for name, value in flat(raw) if type(value) is int and value > 0}
    return Recorded(folder, steps, settings, _groups(folder), measured, apart)


def _check_steps(folder: Path, lines: list[dict[str, Any]], apart: bool) -> None:
    """Raise UserError when the seconds of a step are not those of its own answers."""
    why = ""
    if any(PUT_OFF in line for line in lines):
        why = "postponed long answers from step to step"
    elif apart:
        why = "drew answers of several steps at once (training.max_staleness)"
    if why:
        raise UserError(
            f"{folder} {why}, so the cost of one step is unknown, and its engine did not measure "
            "its passes (a local one without engine.speculate does): give a run of such an engine, "
            "or one that waits for its answers, such as one of grpo"
        )


def _drew(line: Mapping[str, Any], measured: bool) -> bool:
    """Whether an engine drew the step's tokens, and all needed metrics are recorded."""
    names = (*NEEDED, "tokens", *([MEASURED] if measured else []))
    numbers = [line.get(name, 0) for name in names]
    return AGE in line and all(is_number(number) and number > 0 for number in numbers)


def _groups(folder: Path) -> dict[int, list[Ints]]:
    """The lengths of the answers to each prompt, by recorded step."""
    found: dict[int, list[Ints]] = {}
    for path in spread(rollouts_files(folder), MOST_FILES):
        columns = read_table(path, ("step", "uid", "draw", "length")).to_pydict()
        groups: dict[tuple[int, int], list[int]] = {}
        for uid, draw, length in zip(*(columns[n] for n in ("uid", "draw", "length")), strict=True):
            groups.setdefault((uid, draw), []).append(max(int(length), 1))
        if groups:
            found[columns["step"][0]] = [np.array(group) for group in groups.values()]
    return found
