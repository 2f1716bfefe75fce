"""Reads a run's folder, also while it is running: metrics, configuration, rollouts, machine."""

import math
from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strop.method.charts import NAME as CHARTS
from strop.method.charts import LineChart, from_objects
from strop.report.recorded import Recorded, Recordings
from strop.support.errors import UserError
from strop.support.files import json_of, text_of
from strop.tracking.metrics_file import Growing, check_recorded, is_number, set_of
from strop.training.record import ending
from strop.training.record.versions import read_environment

STOPPED = "The run stopped"  # begins the note of a run that an error has stopped
FILES = ("metrics.jsonl", "config.toml", "environment.json", CHARTS, ending.NAME, "rollouts")
# Increasing steps, and the values at them.
Series = tuple[NDArray[np.int64], NDArray[np.float64]]
NOTHING: Series = (np.empty(0, np.int64), np.empty(0))
# Steps, and the lower and the upper limit at them.
Band = tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]


@dataclass(frozen=True)
class Run:
    """What a run has written so far, or the mean of several runs over seeds."""

    name: str
    numbers: Mapping[str, Series]  # every number recorded, in the order of first appearance
    num_steps: int  # training steps recorded, without the validation before them
    config: str | None  # the text of config.toml
    rollouts: tuple[Recorded, ...]  # of some steps, oldest first
    notes: tuple[str, ...]  # sentences about what is missing or was left out
    environment: tuple[Mapping[str, Any], ...] = ()  # of each start
    charts: tuple[LineChart, ...] = ()  # declared by the parts of its method
    members: tuple["Run", ...] = ()  # the runs whose mean this is
    spread: Mapping[str, Band] = field(default_factory=dict)  # intervals of their means

    def series(self, key: str) -> Series:
        """Steps and values of a number; both empty when it is not recorded."""
        return self.numbers.get(key, NOTHING)

    def validations(self, key: str) -> Series:
        """The steps at which the set of this number was validated, and the number there; NaN where
        the validation does not have it.
        """
        start = set_of(key)
        theirs = (steps for name, (steps, _) in self.numbers.items() if name.startswith(start))
        all_steps = np.unique(np.concatenate([NOTHING[0], *theirs]))
        known, values = self.series(key)
        found = np.full(len(all_steps), np.nan)
        found[np.searchsorted(all_steps, known)] = values
        return all_steps, found

    def last_validation(self, key: str) -> float:
        """The number at the last validation of its set; NaN where there is none."""
        values = self.validations(key)[1]
        return float(values[-1]) if len(values) else math.nan

    def is_share(self, key: str) -> bool:
        """Whether all values of a number lie from 0 to 1."""
        values = self.series(key)[1]
        return bool(((values >= 0) & (values <= 1)).all())


def read_run(folder: Path) -> Run:
    """Read a run's folder; a missing file or a cut last line becomes a note.

    Raises UserError when it is not a run's folder, and for a metrics line (except the last) that
    is not a JSON object with an integer `step`.
    """
    check_recorded(folder)
    return Reader(folder).read()


class Reader:
    """Reads a run's folder repeatedly; of its metrics and rollouts only what is new."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.metrics, self.numbers = Growing(folder), Numbers()
        self.recordings = Recordings(folder / "rollouts")
        self.seen: tuple[Any, Run | None] = ((), None)  # stamps of the files, and the run read

    def read(self) -> Run:
        """The current run: the same object as at the last call when no file has changed. A run
        without a step yet has no numbers.

        Raises UserError as `read_run` does, except for a folder with a configuration but no
        metrics yet.
        """
        files = [_stamp(self.folder / name) for name in FILES]
        before, run = self.seen
        if run is None or files != before:
            run = self._read()
            self.seen = (files, run)
        return run

    def _read(self) -> Run:
        if not (self.folder / "config.toml").is_file():
            check_recorded(self.folder)
        if self.metrics.rewritten():
            self.metrics, self.numbers = Growing(self.folder), Numbers()
        for line in self.metrics.lines():
            self.numbers.add(line)
        notes: list[str] = []
        if self.metrics.cut:
            notes.append("The last line of metrics.jsonl is cut off and was left out.")
        if not self.numbers.columns and not self.numbers.steps:
            notes.append("No step has been recorded yet.")
        _read_end(self.folder, notes)
        text = _read_config(self.folder / "config.toml", notes)
        rollouts = tuple(self.recordings.read(notes))
        environment = _read_environment(self.folder, notes)
        name, count = self.folder.resolve().name, len(self.numbers.steps)
        series = self.numbers.series()
        charts = _read_charts(self.folder / CHARTS, notes)
        return Run(name, series, count, text, rollouts, tuple(notes), environment, charts)


class Numbers:
    """Every finite number of metrics lines by its name.

    A step written twice (two lines, as after an evaluation) has the later value.
    """

    def __init__(self) -> None:
        self.columns: dict[str, tuple[array[int], array[float]]] = {}
        self.steps: set[int] = set()  # of training

    def add(self, line: Mapping[str, Any]) -> None:
        """Add the numbers of one line."""
        step = line["step"]
        if step > 0:
            self.steps.add(step)
        for key, value in line.items():
            if key != "step" and is_number(value):
                steps, values = self.columns.setdefault(key, (array("q"), array("d")))
                steps.append(step)
                values.append(value)

    def series(self) -> dict[str, Series]:
        """The series of all numbers added so far."""
        return {key: _in_order(*pair) for key, pair in self.columns.items()}


def _stamp(path: Path) -> tuple[int, ...]:
    """A stamp that changes when the file or the folder's list changes; empty if it is missing."""
    if not path.exists():
        return ()
    stat = path.stat()
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def _in_order(steps: "array[int]", values: "array[float]") -> Series:
    """Increasing steps, each with its last value."""
    all_steps = np.frombuffer(steps, np.int64)
    order, first = np.unique(all_steps[::-1], return_index=True)  # the last one comes first
    return order, np.frombuffer(values, np.float64)[::-1][first]


def _read_config(path: Path, notes: list[str]) -> str | None:
    """The text of config.toml; None, with a note, when there is none. Raises UserError."""
    if not path.is_file():
        notes.append("There is no config.toml.")
        return None
    return text_of(path, "the configuration")


def _read_environment(folder: Path, notes: list[str]) -> tuple[Mapping[str, Any], ...]:
    """The starts of the run; a file that cannot be read becomes a note."""
    try:
        return tuple(read_environment(folder))
    except UserError:
        notes.append("environment.json cannot be read and was left out.")
        return ()


def _read_end(folder: Path, notes: list[str]) -> None:
    """A note where an error has stopped the run."""
    try:
        end = ending.read(folder)
    except UserError:
        notes.append(f"{ending.NAME} cannot be read and was left out.")
        return
    if end is not None and end.why:
        notes.append(f"{STOPPED} after step {end.step}: {end.why}")


def _read_charts(path: Path, notes: list[str]) -> tuple[LineChart, ...]:
    """The charts that the run's parts declare; a file that cannot be read becomes a note."""
    if not path.exists():
        return ()
    try:
        return from_objects(json_of(path.read_bytes()))
    except (OSError, ValueError):
        notes.append(f"{path.name} cannot be read and was left out.")
        return ()
