"""Episodes that are rows of files: a file for each split, a row for each seed."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

from strop.data.prompts import MAX_SPLIT_ROWS

Row = TypeVar("Row")
SPLITS = ("train", "validation", "heldout")  # in the order of their seeds


class RowFiles(Generic[Row]):
    """The rows of a training file, and of files for validation and held-out episodes.

    read: the rows of a file, one at least; it is called often, so it keeps what it has read.
    """

    def __init__(
        self, read: Callable[[str], Sequence[Row]], train: str, validation: str = "",
        heldout: str = "",
    ) -> None:  # fmt: skip
        given = zip(SPLITS, (train, validation, heldout), strict=True)
        self.files = {split: str(Path(file).resolve()) for split, file in given if file}
        self.read = read

    def row(self, seed: int) -> Row:
        """The row that a seed names; seeds beyond the file's end begin again at its start."""
        split, place = divmod(seed, MAX_SPLIT_ROWS)
        rows = self.read(self.files.get(SPLITS[min(split, 2)], self.files["train"]))
        return rows[place % len(rows)]

    def num_episodes(self) -> dict[str, int]:
        """The number of rows of each split that has a file."""
        return {split: len(self.read(file)) for split, file in self.files.items()}
