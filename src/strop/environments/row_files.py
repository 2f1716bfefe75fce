"""Episodes that are rows of JSON Lines files: a file for each split, a row for each seed."""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar

from strop.data.prompts import MAX_SPLIT_ROWS
from strop.support.errors import UserError
from strop.support.files import json_lines

Row = TypeVar("Row")
SPLITS = ("train", "validation", "heldout")  # in the order of their seeds


class RowFiles(Generic[Row]):
    """The rows of a training file, and of files for validation and held-out episodes.

    environment, what: names of the environment and of the rows, for messages. read: makes a row of
    a line's content, its place in messages and its file; raises UserError.
    """

    def __init__(
        self, environment: str, what: str, read: Callable[[Any, str, Path], Row], train: str,
        validation: str = "", heldout: str = "",
    ) -> None:  # fmt: skip
        given = zip(SPLITS, (train, validation, heldout), strict=True)
        self.files = {split: Path(file).resolve() for split, file in given if file}
        self.source = environment, what, read

    def of(self, split: str) -> Sequence[Row]:
        """The rows of a split, or of training where it has no file. Raises UserError."""
        return _rows(self.files.get(split, self.files["train"]), *self.source)

    def row(self, seed: int) -> Row:
        """The row that a seed names; seeds beyond the file's end begin again at its start."""
        split, place = divmod(seed, MAX_SPLIT_ROWS)
        rows = self.of(SPLITS[min(split, 2)])
        return rows[place % len(rows)]

    def num_episodes(self) -> dict[str, int]:
        """The number of rows of each split that has a file."""
        return {split: len(self.of(split)) for split in self.files}


@cache
def _rows(path: Path, environment: str, what: str, read: Callable[..., Any]) -> tuple[Any, ...]:
    """The rows of a file, which is read once. Raises UserError naming the first bad line."""
    lines = json_lines(path, what, environment)
    found = tuple(read(row, place, path) for place, row in lines)
    if not found:
        raise UserError(f"{environment}: {path} has no rows")
    return found
