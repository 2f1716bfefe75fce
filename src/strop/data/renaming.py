"""Columns of data files under the names that strop, or a reward, knows them by."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from strop.support.errors import UserError, did_you_mean

Row = dict[str, Any]


@dataclass(frozen=True)
class Renaming:
    """What a column of the files is called from here on: theirs -> ours (`data.columns`).

    A file that has none of theirs stays as it is, so files of several layouts go together. Raises
    UserError for two columns under one name.
    """

    names: Mapping[str, str]

    def __post_init__(self) -> None:
        ours = list(self.names.values())
        if twice := next((name for name in ours if ours.count(name) > 1), ""):
            raise UserError(f"data.columns gives two columns the name {twice!r}: give each its own")

    def of_file(self, first: Row) -> dict[str, str]:
        """What is renamed in a file with this first row."""
        return {theirs: ours for theirs, ours in self.names.items() if theirs in first}

    def check(self, firsts: Sequence[tuple[str, Row]]) -> None:
        """Raise UserError for a name that no file has, nor the new one in its place.

        firsts: of each file, what it is called and its first row.
        """
        for theirs, ours in self.names.items():
            if not any(theirs in row or ours in row for _, row in firsts):
                where, row = firsts[0]
                raise UserError(
                    f"data.columns renames {theirs!r}, which {where} does not have"
                    f"{did_you_mean(theirs, row)}; its columns are {', '.join(row) or 'none'}"
                )


def renamed(row: Row, names: Mapping[str, str], where: str) -> Row:
    """The row under other names. Raises UserError where one of them is there already."""
    if not names:
        return row
    found = {names.get(name, name): value for name, value in row.items()}
    if len(found) < len(row):
        theirs, ours = next((a, b) for a, b in names.items() if b in row and b not in names)
        raise UserError(
            f"{where} has both {theirs!r} and {ours!r}, and data.columns makes the first the "
            "second: rename the second, too, or leave the first as it is"
        )
    return found


def pairs(words: list[str], option: str) -> dict[str, str]:
    """`theirs=ours` of the command line as a table. Raises UserError."""
    found = {}
    for word in words:
        theirs, given, ours = word.partition("=")
        if not given or not theirs.strip() or not ours.strip():
            raise UserError(f"{option} takes THEIRS=OURS, such as question=prompt, got {word!r}")
        found[theirs.strip()] = ours.strip()
    return found
