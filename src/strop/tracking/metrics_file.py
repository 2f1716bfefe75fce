"""Reading metrics.jsonl: one object a line, each with a whole `step`; also while a run goes on."""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from strop.support.errors import UserError

NAME = "metrics.jsonl"
MOST_STEPS = 2**53


def is_number(value: Any) -> bool:
    """True for a finite number that a float can hold; not for True and False."""
    if type(value) is float:
        return math.isfinite(value)
    return type(value) is int and abs(value) < 1e300


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics; a last one that is just being written is left out.

    Raises UserError when the folder is not a run, and for a line that is none of metrics.
    """
    return list(lines_of(folder))


def lines_of(folder: Path) -> Iterator[dict[str, Any]]:
    """As `read_metrics`, one line at a time."""
    check_recorded(folder)
    yield from Growing(folder).lines()


def check_recorded(folder: Path) -> None:
    """Raise UserError when the folder has no metrics, so that it is not a run."""
    if not (folder / NAME).is_file():
        raise UserError(
            f"{folder} is not a run: it has no {NAME}; give the folder that training wrote"
        )


class Growing:
    """The metrics of a run that goes on, read again and again: each time only what is new."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME
        self.cut = False  # whether the last line was half written, and left out
        self._last, self._end, self._count = b"", 0, 0  # the last whole line that was read

    def rewritten(self) -> bool:
        """Whether what was read is there no more: a run that goes on cuts later steps off."""
        if not self.path.is_file():
            return self._end > 0
        with self.path.open("rb") as file:
            file.seek(self._end - len(self._last))
            return file.read(len(self._last)) != self._last

    def lines(self) -> Iterator[dict[str, Any]]:
        """The lines since the last call; one without its end, if it is a whole one, again later.

        Raises UserError for a line that is none of metrics, at every call until it is mended.
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
    """The lines up to that of `step`; whatever stands behind it may be damaged.

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
        f"{path} ends before step {step}, that of the checkpoint: put the whole file back, or go "
        "on from an earlier checkpoint with --step"
    )


def _values(path: Path, number: int, line: bytes) -> dict[str, Any]:
    """What a line holds. Raises UserError, naming it."""
    found = _parsed(line)
    if found is None:
        raise UserError(
            f"{path}, line {number} is no line of metrics (an object with a whole `step`): "
            "mend it, or remove it to continue without it"
        )
    return found


def _parsed(line: bytes) -> dict[str, Any] | None:
    """The line's values; None for what is no line of metrics."""
    try:
        found = json.loads(line.decode())
    except (ValueError, RecursionError):  # not UTF-8, not JSON
        return None
    step = found.get("step") if isinstance(found, dict) else None
    return found if type(step) is int and 0 <= step < MOST_STEPS else None
