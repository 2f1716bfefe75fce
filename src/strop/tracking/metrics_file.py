"""Reads metrics.jsonl, one object a line with an integer `step`, also while a run is running."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from strop.support.errors import UserError
from strop.support.folder_hints import run_inside

NAME = "metrics.jsonl"
SETS = "eval/"  # before the numbers of all validation sets
MOST_STEPS = 2**53


def set_of(key: str) -> str:
    """The beginning of all numbers of one validation set, `eval/NAME/`, by one of them."""
    return "/".join([*key.split("/")[:2], ""])


def is_number(value: Any) -> bool:
    """True for a finite number that fits into a float; False for booleans."""
    if type(value) is float:
        return math.isfinite(value)
    return type(value) is int and abs(value) < 1e300


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics; a last line that is still being written is left out.

    Raises UserError when the folder is not a run, and for a line that is not metrics.
    """
    return list(lines_of(folder))


def lines_of(folder: Path) -> Iterator[dict[str, Any]]:
    """As `read_metrics`, one line at a time."""
    check_recorded(folder)
    yield from Growing(folder).lines()


def check_recorded(folder: Path, file: str = NAME) -> None:
    """Raise UserError when the folder has no such file and so is not a run."""
    if not (folder / file).is_file():
        why = f"it has no {file}" if folder.exists() else "it does not exist"
        raise UserError(
            f"{folder} is not a run: {why}; give the folder that training wrote{run_inside(folder)}"
        )


class Growing:
    """Reads the metrics of a running run repeatedly, each time only the new lines."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self.cut = False  # whether the last line was incomplete, and left out
        self._last, self._end, self._count = b"", 0, 0  # last complete line, its end, its number

    def rewritten(self) -> bool:
        """Whether lines that were read are gone: a resumed run removes later steps."""
        if not self.path.is_file():
            return self._end > 0
        with self.path.open("rb") as file:
            file.seek(self._end - len(self._last))
            return file.read(len(self._last)) != self._last

    def lines(self) -> Iterator[dict[str, Any]]:
        """The lines since the last call. A complete object without a line end is returned too, and
        again at the next call.

        Raises UserError for a line that is not metrics, at every call until it is repaired.
        """
        self.cut = False
        if not self.path.is_file():
            return
        with self.path.open("rb") as file:
            file.seek(self._end)
            for number, line in enumerate(file, self._count + 1):
                if not line.endswith(b"\n"):
                    values = _parsed(line)
                    self.cut = values is None
                    if values is not None:
                        yield values
                    return
                values = _values(self.path, number, line)
                self._last, self._end, self._count = line, self._end + len(line), number
                yield values


def lines_until(path: Path, step: int) -> list[bytes]:
    """The lines up to that of `step`; lines after it may be damaged.

    Raises UserError for a damaged line before it, and when the file ends before it.
    """
    lines = path.read_bytes().split(b"\n") if path.exists() else []
    if step == 0:  # perhaps a validation before training
        return [line for line in lines[:1] if (_parsed(line) or {}).get("step") == 0]
    for number, line in enumerate(lines, 1):
        if number == len(lines) and not line:
            break
        if (found := _values(path, number, line)["step"]) >= step:
            return lines[: number - (found > step)]
    raise UserError(
        f"{path} ends before step {step}, that of the checkpoint: restore the whole file, or "
        "resume from an earlier checkpoint with --step"
    )


def _values(path: Path, number: int, line: bytes) -> dict[str, Any]:
    """The values of a line. Raises UserError, naming the line."""
    found = _parsed(line)
    if found is None:
        raise UserError(
            f"{path}, line {number} is not a line of metrics (an object with an integer `step`): "
            "repair it, or remove it to continue without it"
        )
    return found


def _parsed(line: bytes) -> dict[str, Any] | None:
    """The line's values; None when it is not a line of metrics."""
    try:
        found = json.loads(line.decode())
    except (ValueError, RecursionError):  # not UTF-8, not JSON
        return None
    step = found.get("step") if isinstance(found, dict) else None
    return found if type(step) is int and 0 <= step < MOST_STEPS else None
