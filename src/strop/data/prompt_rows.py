"""Many prompts, each made again at every access: stored packed, or read from their files."""

import itertools
import pickle
import zlib
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, overload

from strop.data.prompts import MAX_SPLIT_ROWS, Prompt
from strop.support.errors import UserError

Change = Callable[[Prompt], Prompt]
LOOKED_AT = 20_000  # rows of a split that are checked before step 1


@dataclass
class Pack:
    """The rows of one or several files, a few bytes each; they are added once and never changed.

    A million rows as objects would take a gigabyte, and seconds of every garbage collection.
    """

    split: int  # its number, from 0
    names: dict[str, int] = field(default_factory=dict)  # columns in order of first appearance
    content: bytearray = field(default_factory=bytearray)
    ends: "array[int]" = field(default_factory=lambda: array("q", [0]))  # of rows within `content`
    files: list[tuple[int, str, str]] = field(default_factory=list)  # first row, path, column

    def begin(self, path: str, column: str) -> None:
        """Start a file: the rows added from now on are its, with their prompts in this column."""
        self.files.append((len(self), path, column))

    def add(self, prompt: Any, columns: Mapping[str, Any], place: str) -> None:
        """Add a row. Raises UserError, beginning with `place`, for an unpicklable value."""
        for name in columns:
            if name not in self.names:
                self.names[name] = len(self.names)
        values = (prompt, *map(columns.get, self.names))
        try:
            self.content += pickle.dumps(values, pickle.HIGHEST_PROTOCOL)
        except (pickle.PicklingError, TypeError, AttributeError, RecursionError) as error:
            raise UserError(
                f"{place} has a value that no reward could be sent ({error}): make it text, a "
                "number, a list or an object of these"
            ) from error
        self.ends.append(len(self.content))

    def __len__(self) -> int:
        return len(self.ends) - 1

    def crc(self) -> int:
        """0, since all rows are checked before step 1."""
        return 0

    def ends_of_sources(self) -> list[int]:
        """The index after the last row of each file."""
        return [first for first, _, _ in self.files[1:]] + [len(self)]

    def prompt(self, row: int) -> Prompt:
        """The prompt of a row, counted from 0; columns that the row lacks are None."""
        content, *values = pickle.loads(self.content[self.ends[row] : self.ends[row + 1]])
        columns = dict.fromkeys(self.names)
        columns.update(zip(self.names, values, strict=False))  # names of later rows have no value
        first, path, column = next(file for file in reversed(self.files) if file[0] <= row)
        place = f"{path} row {row - first + 1}"
        return Prompt(self.split * MAX_SPLIT_ROWS + row, content, columns, place, column)


class Lies(Protocol):
    """The rows of one source, laid out as prompts."""

    column: str  # the column of their prompts

    def __len__(self) -> int: ...

    def read(self, row: int) -> tuple[Any, dict[str, Any], str]:
        """The prompt, the columns and the place of a row. Raises UserError for a bad one."""
        ...

    def crc(self) -> int:
        """A checksum that changes when the rows do."""
        ...


class Many:
    """The rows of sources with too many to store: each row is read at every access.

    Columns that a row lacks are None, as far as they are known from the rows that `look` has read.
    """

    def __init__(self, split: int, sources: Sequence[Lies]) -> None:
        self.split, self.sources = split, sources
        self._ends = array("q", itertools.accumulate(map(len, sources)))
        self._names: dict[str, None] = {}

    def __len__(self) -> int:
        return self._ends[-1]

    def look(self) -> None:
        """Read evenly spread rows. Raises UserError for a bad one."""
        for row in range(len(self))[:: stride(len(self))]:
            self._names.update(dict.fromkeys(self.prompt(row).columns))

    def prompt(self, row: int) -> Prompt:
        """The prompt of a row, counted from 0. Raises UserError for a bad one."""
        at = bisect_right(self._ends, row)
        source = self.sources[at]
        content, columns, place = source.read(row - (self._ends[at - 1] if at else 0))
        whole = {**self._names, **columns}
        return Prompt(self.split * MAX_SPLIT_ROWS + row, content, whole, place, source.column)

    def crc(self) -> int:
        """The checksum of all sources."""
        return zlib.crc32(repr([source.crc() for source in self.sources]).encode())

    def ends_of_sources(self) -> list[int]:
        """The index after the last row of each source."""
        return list(self._ends)


def stride(size: int) -> int:
    """The stride at which `size` rows are checked before step 1."""
    return -(-size // LOOKED_AT) or 1


def looked_at(prompts: Sequence[Prompt]) -> Sequence[Prompt]:
    """The prompts that are checked before step 1: all, or of very many an evenly spread part."""
    return prompts[:: stride(len(prompts))]


class PromptRows(Sequence[Prompt]):
    """Rows of a pack as prompts, changed by `change` if given; it equals a list of them."""

    def __init__(
        self, pack: Pack | Many, rows: Sequence[int] | None = None, change: Change | None = None
    ) -> None:
        self.pack, self.change = pack, change
        self.rows: Sequence[int] = range(len(pack)) if rows is None else rows

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, at: int) -> Prompt: ...
    @overload
    def __getitem__(self, at: slice) -> "PromptRows": ...
    def __getitem__(self, at: int | slice) -> "Prompt | PromptRows":
        if isinstance(at, slice):
            return PromptRows(self.pack, self.rows[at], self.change)
        return self._made(self.rows[at])

    def __iter__(self) -> Iterator[Prompt]:
        return map(self._made, self.rows)

    def _made(self, row: int) -> Prompt:
        prompt = self.pack.prompt(row)
        return prompt if self.change is None else self.change(prompt)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or len(self) != len(other):
            return False
        return all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]

    @property
    def uids(self) -> Sequence[int]:
        """The prompts' uids, without making prompts; consecutive ones take no memory."""
        first, rows = self.pack.split * MAX_SPLIT_ROWS, self.rows
        if isinstance(rows, range):
            return range(first + rows.start, first + rows.stop, rows.step)
        return array("q", (first + row for row in rows))

    def place(self, uid: int) -> int | None:
        """The index of a uid among rising rows; None where it is not among these."""
        row = uid - self.pack.split * MAX_SPLIT_ROWS
        at = bisect_left(self.rows, row)
        return at if at < len(self) and self.rows[at] == row else None

    def changed(self, change: Change) -> "PromptRows":
        """The same prompts, each changed when it is accessed."""
        assert self.change is None, "prompts are put to the model once"
        return PromptRows(self.pack, self.rows, change)


def pool_of(prompts: Sequence[Prompt]) -> Sequence[int]:
    """The uids to draw from: a tuple, or for very many a sequence that takes less memory."""
    if isinstance(prompts, PromptRows) and stride(len(prompts)) > 1:
        return prompts.uids
    return tuple(uids_of(prompts))


def uids_of(prompts: Sequence[Prompt]) -> "array[int]":
    """The uids of the prompts, in order."""
    uids = prompts.uids if isinstance(prompts, PromptRows) else (each.uid for each in prompts)
    return array("q", uids)


def those(prompts: Sequence[Prompt], places: Iterable[int]) -> Sequence[Prompt]:
    """The prompts at these indices."""
    if isinstance(prompts, PromptRows):
        rows = array("q", (prompts.rows[place] for place in places))
        return PromptRows(prompts.pack, rows, prompts.change)
    return [prompts[place] for place in places]


def each(prompts: Sequence[Prompt], change: Change) -> Sequence[Prompt]:
    """Apply a change to the prompts, at once or, for `PromptRows`, at every access."""
    return prompts.changed(change) if isinstance(prompts, PromptRows) else [*map(change, prompts)]
