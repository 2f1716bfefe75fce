"""Opens data by its name in the settings: a file, a folder or a data set, with rows by index."""

import itertools
import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from strop.data.row_files import Csv, JsonLines, json_file
from strop.data.row_tables import HUB, Parquet, folder, from_hub
from strop.support.errors import UserError, did_you_mean

Row = dict[str, Any]


class Source(Protocol):
    """Rows of some storage; each is read at every access, as a new object."""

    name: str  # its name in messages

    def __len__(self) -> int: ...

    def __getitem__(self, row: int, /) -> Row:
        """A row, from 0. Raises UserError, naming the place, for one that cannot be read."""
        ...

    def crc(self) -> int:
        """A checksum that changes when the rows do."""
        ...


def open_source(given: str | Path) -> Source:
    """Open a file of one of `_READERS`, a folder that `datasets` wrote, or a set `hf:NAME`.

    CSV values are text. Raises UserError for a missing file, an unknown extension, content that
    cannot be read, and data without a row.
    """
    try:
        source = _opened(given)
    except OSError as error:
        raise UserError(f"cannot read the data file {given}: {error.strerror}") from error
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
        beside = path.parent.iterdir() if path.parent.is_dir() else ()
        near = did_you_mean(path.name, [other.name for other in beside])
        raise UserError(
            f"data file {path} does not exist{near}: check the path, seen from {Path.cwd()}"
        )
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise UserError(
            f"data file {path} has the unknown extension {path.suffix!r}: it must be one of "
            f"{', '.join(_READERS)}, a folder saved by datasets, hf:NAME, or hf:FOLDER of files "
            "of any kind that datasets reads"
        )
    return reader(path)


def short_name(given: str | Path) -> str:
    """A run's name for its data: the file's name without its suffix, or the data set's name."""
    text = str(given)
    if text.startswith(HUB):
        text = text.removeprefix(HUB).partition(":")[0].partition("@")[0]
    path = Path(text)
    return path.stem if path.suffix.lower() in _READERS else path.name


_READERS: dict[str, Callable[[Path], Source]] = {
    ".jsonl": JsonLines,
    ".json": json_file,
    ".parquet": Parquet,
    ".csv": Csv,
}


NAME = re.compile(r"[A-Za-z_][\w.-]*")  # of a source or validation set
_NAMED = re.compile(rf"({NAME.pattern})=(.+)")
TAKEN = ("train", "heldout")  # names of other splits


def named_sources(given: Sequence[str | Path]) -> list[tuple[str, str | Path]]:
    """Training files with their names: NAME=FILE, or else the file's own name, made unique.

    Raises UserError for a name that is given twice.
    """
    found = [_NAMED.fullmatch(str(text)) for text in given]
    parted: list[tuple[str, str | Path]] = [
        (short_name(text), text) if each is None or os.path.exists(text) else (each[1], each[2])
        for text, each in zip(given, found, strict=True)
    ]
    names = [name for name, _ in parted]
    used = {name for name in names if names.count(name) == 1}
    sources: list[tuple[str, str | Path]] = []
    for number, (name, text) in enumerate(parted):
        if names.count(name) > 1 and text is not given[number]:
            raise UserError(f"data.files names two sources {name!r}: give each a name of its own")
        if names.count(name) > 1:
            name = next(n for i in itertools.count(1) if (n := f"{name}-{i}") not in used)
            used.add(name)
        sources.append((name, text))
    return sources


def validation_sets(given: Sequence[str]) -> tuple[list[str], dict[str, list[str]]]:
    """The validation files without a name, and the files of sets `NAME=FILE`, by name.

    Files with the same name form one set. Raises UserError for the name of another split.
    """
    plain: list[str] = []
    sets: dict[str, list[str]] = {}
    for text in given:
        found = None if os.path.exists(text) else _NAMED.fullmatch(text)
        if found is None:
            plain.append(text)
        elif found[1] in TAKEN:
            raise UserError(
                f"data.validation_files: {text!r} names a set {found[1]!r}, as another split is "
                "called: give it another name"
            )
        elif found[1] == "validation":
            plain.append(found[2])
        else:
            sets.setdefault(found[1], []).append(found[2])
    return plain, sets
