"""Data by its name: a file, a folder or a data set, any row of it by its number."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from strop.data.row_files import Csv, JsonLines
from strop.data.row_tables import HUB, Parquet, folder, from_hub
from strop.support.errors import UserError
from strop.support.name_hints import did_you_mean

Row = dict[str, Any]


class Source(Protocol):
    """Rows that lie somewhere; each is read when it is asked for, and given anew each time."""

    name: str  # what messages call it

    def __len__(self) -> int: ...

    def __getitem__(self, row: int, /) -> Row:
        """A row, from 0. Raises UserError, naming the place, for one that cannot be read."""
        ...

    def crc(self) -> int:
        """A sum that is another one where the rows are."""
        ...


def open_source(given: str | Path) -> Source:
    """A .jsonl, .parquet or .csv file, a folder written by `datasets`, or a data set `hf:NAME`.

    CSV values are text. Raises UserError for a missing file, an unknown extension, content that
    cannot be read, and data without a row.
    """
    source = _opened(given)
    if not len(source):
        raise UserError(f"{given} has no rows: give data with at least one")
    return source


def _opened(given: str | Path) -> Source:
    if str(given).startswith(HUB):
        return from_hub(str(given))
    path = Path(given)
    if os.path.isdir(path):  # unlike Path's, false for a name that no file can have
        return folder(path)
    if not os.path.exists(path):
        near = did_you_mean(path.name, _siblings(path))
        raise UserError(f"data file {path} does not exist{near}: check the path")
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise UserError(
            f"data file {path} has the unknown extension {path.suffix!r}: it must be one of "
            f"{', '.join(_READERS)}, a folder saved by datasets, or hf:NAME"
        )
    return reader(path)


def short_name(given: str | Path) -> str:
    """What a run calls its data: the file's name without its ending, the data set's alone."""
    text = str(given)
    if text.startswith(HUB):
        text = text.removeprefix(HUB).partition(":")[0].partition("@")[0]
    return Path(text).stem


def _siblings(path: Path) -> list[str]:
    near = path.parent
    return [other.name for other in near.iterdir()] if near.is_dir() else []


_READERS: dict[str, Callable[[Path], Source]] = {
    ".jsonl": JsonLines,
    ".parquet": Parquet,
    ".csv": Csv,
}
