"""Reading a run's folder, also while it is running: metrics, configuration, rollouts, machine."""

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
from strop.tracking.metrics_file import Growing, check_recorded, is_number
from strop.training.record.versions import read_environment

FILES = ("metrics.jsonl", "config.toml", "environment.json", CHARTS, "rollouts")
# Steps, rising, and the values at them.
Series = tuple[NDArray[np.int64], NDArray[np.float64]]
NOTHING: Series = (np.empty(0, np.int64), np.empty(0))
# Steps, and the lower and the upper limit at them.
Band = tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]


@dataclass(frozen=True)
class Run:
    """What a run has written so far, or the mean of several runs over seeds."""

    name: str
    numbers: Mapping[str, Series]  # every number recorded, in the order of first appearance
    num_steps: int  # training steps recorded; the validation before them is none
    config: str | None  # the text of config.toml
    rollouts: tuple[Recorded, ...]  # of some steps, oldest first
    notes: tuple[str, ...]  # what is missing or was left out, in sentences
    environment: tuple[Mapping[str, Any], ...] = ()  # of each start
    charts: tuple[LineChart, ...] = ()  # that the parts of its method bring
    members: tuple["Run", ...] = ()  # the runs that this is the mean of
    spread: Mapping[str, Band] = field(default_factory=dict)  # intervals of their means

    def series(self, key: str) -> Series:
        """Steps and values of a number; both empty where it is not recorded."""
        return self.numbers.get(key, NOTHING)


def read_run(folder: Path) -> Run:
    """Read a run's folder; a missing file or a cut last line becomes a note.

    Raises UserError for what is not a run's folder and for a metrics line (not the last) that is
    not a JSON object with a whole `step`.
    """
    check_recorded(folder)
    return Reader(folder).read()


class Reader:
    """Reads a run's folder again and again: of its metrics and rollouts only what is new."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.metrics, self.numbers = Growing(folder), Numbers()
        self.recordings = Recordings(folder / "rollouts")
        self.seen: tuple[Any, Run | None] = ((), None)  # how the files were, and the run that gave

    def read(self) -> Run:
        """The run as it is now, the very one of the last call where no file is another since; one
        that has no step yet is a run without numbers.

        Raises UserError as `read_run`, but for a configuration without metrics.
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
        self.steps: set[int] = set()  # those of training

    def add(self, line: Mapping[str, Any]) -> None:
        """Take in one line."""
        step = line["step"]
        if step > 0:
            self.steps.add(step)
        for key, value in line.items():
            if key != "step" and is_number(value):
                steps, values = self.columns.setdefault(key, (array("q"), array("d")))
                steps.append(step)
                values.append(value)

    def series(self) -> dict[str, Series]:
        """What has been taken in so far."""
        return {key: _in_order(*pair) for key, pair in self.columns.items()}


def _stamp(path: Path) -> tuple[int, ...]:
    """What becomes another when a file or a folder's list does; empty where there is none."""
    if not path.exists():
        return ()
    stat = path.stat()
    return stat.st_ino, stat.st_mtime_ns, stat.st_size


def _in_order(steps: "array[int]", values: "array[float]") -> Series:
    """Rising steps, each with its last value."""
    all_steps = np.frombuffer(steps, np.int64)
    order, first = np.unique(all_steps[::-1], return_index=True)  # the last one comes first
    return order, np.frombuffer(values, np.float64)[::-1][first]


def _read_config(path: Path, notes: list[str]) -> str | None:
    """The text of config.toml, None with a note where there is none. Raises UserError."""
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


def _read_charts(path: Path, notes: list[str]) -> tuple[LineChart, ...]:
    """The charts that the run's parts bring; a file that cannot be read becomes a note."""
    if not path.exists():
        return ()
    try:
        return from_objects(json_of(path.read_bytes()))
    except (OSError, ValueError):
        notes.append(f"{path.name} cannot be read and was left out.")
        return ()
