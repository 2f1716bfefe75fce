"""Files of recorded rollouts: groups the rollouts by task, and records where each is stored.

All rows are read once, so that an error shows before the first step; afterwards the rollouts of a
group are read when it is drawn.
"""

from __future__ import annotations

import glob
import gzip
import tempfile
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from strop.data.read import Source
from strop.data.row_files import JsonLines
from strop.support.errors import UserError, did_you_mean
from strop.support.files import json_of
from strop.traces.reading import NothingSaid, is_event, rollout_of
from strop.traces.records import Rollout

OTHER_COLUMNS = (
    "has other columns than the first rollout of group {!r}: columns describe the task, and reward "
    "functions get the first one's for all, so make them equal or give the rollout another group"
)
ENDINGS = (".jsonl", ".json", ".jsonl.gz", ".json.gz")


class Place(NamedTuple):
    """Where a rollout is stored: a file and its rows; several rows are its events."""

    file: int
    rows: tuple[int, ...]


@dataclass
class Group:
    """Rollouts of one task. prompt: tokens of the first one's first call."""

    name: str
    prompt: tuple[int, ...]
    columns: Mapping[str, Any]
    rewarded: int = 0  # rollouts that have a reward
    places: list[Place] = field(default_factory=list)
    most_turns: int = 0  # of a rollout
    longest: int = 0  # most tokens of a call, prompt and output
    most_output: int = 0  # most output tokens of a rollout's calls
    highest_id: int = 0
    where: str = ""  # the rollout with the longest call

    def add(self, rollout: Rollout, place: Place) -> None:
        """Add a rollout. Raises UserError for columns that are not those of the group."""
        if rollout.columns != self.columns:
            raise UserError(f"{rollout.place} {OTHER_COLUMNS.format(self.name)}")
        self.places.append(place)
        self.rewarded += rollout.reward is not None
        self.most_turns = max(self.most_turns, len(rollout.turns))
        longest = max(turn.size for turn in rollout.turns)
        if longest > self.longest:
            self.longest, self.where = longest, rollout.place
        self.most_output = max(self.most_output, sum(len(t.output_ids) for t in rollout.turns))
        ids = (max(*turn.prompt_ids, *turn.output_ids) for turn in rollout.turns)
        self.highest_id = max(self.highest_id, *ids)


class Traces:
    """The groups of recorded rollouts, in order of their first rollouts; uids are their indices."""

    def __init__(self, files: Sequence[Source], most: int | None = None) -> None:
        self.files, self.name = files, ""
        found: dict[Any, Group] = {}
        self.num_silent = 0  # rollouts in which the model was not called
        for place in (
            Place(number, tuple(rows))
            for number, file in enumerate(files)
            for rows in _of_rollouts(map(file.__getitem__, range(len(file)))).values()
        ):
            try:
                rollout = self._read(place)
            except NothingSaid:
                self.num_silent += 1
                continue
            first = rollout.turns[0].prompt_ids
            key = rollout.group or first
            if key not in found:
                if most is not None and len(found) == most:
                    continue
                name = rollout.group or rollout.place
                found[key] = Group(name, first, rollout.columns)
            found[key].add(rollout, place)
        self.groups = [*found.values()]

    def check_rewards(self) -> None:
        """Raise UserError where no rollout has a reward."""
        if not any(group.rewarded for group in self.groups):
            raise UserError(
                f"no rollout of {self.name} has a reward, so nothing can be learned: add `reward` "
                "to its rows, or give a reward function, --reward NAME"
            )

    def rollouts(self, uid: int) -> tuple[Rollout, ...]:
        """The rollouts of a group."""
        return tuple(self._read(place) for place in self.groups[uid].places)

    def crc(self) -> int:
        """A checksum that changes when the rows do."""
        return zlib.crc32(" ".join(str(file.crc()) for file in self.files).encode())

    def _read(self, place: Place) -> Rollout:
        """Read a rollout. Raises UserError with its file and line."""
        file = self.files[place.file]
        rows = [file[row] for row in place.rows]
        unit = "line" if isinstance(file, JsonLines) else "row"
        where = f"{file.name} {unit} {place.rows[0] + 1}"
        if len(place.rows) > 1 or is_event(rows[0]):
            return rollout_of({"events": rows}, where)
        return rollout_of(rows[0], where)


def _of_rollouts(rows: Iterable[Any]) -> dict[str | int, list[int]]:
    """The indices of each rollout's rows, several for events, in the order of the first ones. The
    keys are the names of rollouts with events.
    """
    found: dict[str | int, list[int]] = {}
    for number, row in enumerate(rows):
        key: str | int = number
        if isinstance(row, Mapping) and is_event(row):
            key = f"{row['rollout_id']}/{row.get('attempt_id')}"
        found.setdefault(key, []).append(number)
    return found


def gathered(rows: Sequence[Any]) -> list[tuple[int, Any]]:
    """Group rows to rollouts, each with the index of its first row: events of one rollout become
    one.
    """
    found = list[tuple[int, Any]]()
    for key, own in _of_rollouts(rows).items():
        rollout = rows[own[0]]
        if isinstance(key, str):
            rollout = {"events": [rows[number] for number in own], "id": key}
        found.append((own[0], rollout))
    return found


def rows_of(path: Path) -> list[dict[str, Any]]:
    """All rows of a file. Raises UserError."""
    rows = _opened(path)
    return [rows[row] for row in range(len(rows))]


def open_traces(given: str, most: int | None = None) -> Traces:
    """Open the recorded rollouts of a file, of a folder's files, or of files matching a pattern.

    most: groups to take. Raises UserError for a file or row that cannot be read.
    """
    try:
        traces = Traces([_opened(path) for path in _paths(given)], most)
    except OSError as error:
        raise UserError(f"cannot read {error.filename or given}: {error.strerror}") from error
    if not traces.groups:
        raise UserError(f"{given} has no rollouts: give at least one")
    traces.name = given
    return traces


def _paths(given: str) -> list[Path]:
    path = Path(given)
    if not given:
        raise UserError("data.task=traces: names no file: give traces:FILE, or a folder")
    if path.is_dir():
        found = sorted(each for each in path.iterdir() if each.is_file() and _ending(each))
        if not found:
            raise UserError(f"{path} has no file with rollouts: they end in {', '.join(ENDINGS)}")
        return found
    if path.is_file():
        if not _ending(path):
            raise UserError(
                f"the file of rollouts {path} ends in {path.suffix!r}: give {', '.join(ENDINGS)}"
            )
        return [path]
    matched = [Path(each) for each in sorted(glob.glob(given, recursive=True))]
    matched = [each for each in matched if each.is_file()]
    if not matched:
        near = [each.name for each in path.parent.iterdir()] if path.parent.is_dir() else []
        hint = did_you_mean(path.name, near)
        raise UserError(
            f"the file of rollouts {given} does not exist{hint}: check the path, seen from "
            f"{Path.cwd()}"
        )
    return matched


def _ending(path: Path) -> bool:
    return path.name.lower().endswith(ENDINGS)


def _opened(path: Path) -> Source:
    name = path.name.lower()
    lines = name.removesuffix(".gz").endswith(".jsonl")
    if name.endswith(".gz"):
        return _unpacked(path, lines)
    return JsonLines(path) if lines else OneJson(path)


def _unpacked(path: Path, lines: bool) -> Source:
    """The rows of a gzip file. Raises UserError for a damaged one, OSError as for a plain file."""
    with tempfile.NamedTemporaryFile() as file:
        try:
            file.write(gzip.decompress(path.read_bytes()))
        except (gzip.BadGzipFile, EOFError, zlib.error) as error:
            raise UserError(f"{path} cannot be unpacked: {error}") from error
        file.flush()
        rows: Source = JsonLines(Path(file.name)) if lines else OneJson(Path(file.name), str(path))
    rows.name = str(path)
    return rows


class OneJson:
    """A file with one JSON value: a rollout, or a list of them."""

    def __init__(self, path: Path, name: str = "") -> None:
        self.name, text = name or str(path), path.read_bytes()
        self._crc = zlib.crc32(text)
        try:
            found = json_of(text)
        except ValueError as error:
            raise UserError(f"{self.name} is not valid JSON: {error}") from error
        self.rows = found if isinstance(found, list) else [found]
        if wrong := [each for each in self.rows if not isinstance(each, dict)]:
            raise UserError(f"{self.name} has a {type(wrong[0]).__name__} in place of a rollout")

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, row: int) -> dict[str, Any]:
        return self.rows[row]

    def crc(self) -> int:
        """The checksum of the file."""
        return self._crc
