"""Rows of text files by index: one pass finds where each begins, then rows are read as needed."""

import csv
import io
import json
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from strop.data.file_content import FileContent
from strop.support.errors import UserError
from strop.support.files import json_of, well_formed

Row = dict[str, Any]
csv.field_size_limit(2**31 - 1)  # its own 131,072 characters are fewer than a long document has


class JsonLines:
    """A file with one object per line; empty lines at its end do not count."""

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self.content = FileContent(path)
        self._starts = self._places()

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, row: int) -> Row:
        """A row. Raises UserError, naming the line."""
        number, line = row + 1, self._line(row)
        if not line.strip():
            raise UserError(f"{self.name} line {number} is empty: remove it")
        try:
            text = line.rstrip().decode()  # so that a line cut short ends in its own last column
            found = json_of(text, once=True)
        except UnicodeDecodeError as error:
            raise _not_utf8(self.name, error) from error
        except ValueError as error:
            why = str(error).partition(";")[0]
            if isinstance(error, json.JSONDecodeError):
                why = f"{error.msg} at column {error.colno}"
            raise UserError(
                f"{self.name} line {number} is not valid JSON ({why}): write one complete object a "
                "line"
            ) from error
        if not isinstance(found, dict):
            raise UserError(
                f"{self.name} line {number} is a JSON {type(found).__name__}, not an object: write "
                '{"prompt": ...}'
            )
        return well_formed(found) if "\\u" in text else found

    def crc(self) -> int:
        """The checksum of the file."""
        return self.content.crc()

    def _line(self, row: int) -> bytes:
        return self.content.between(int(self._starts[row]), int(self._starts[row + 1]))

    def _places(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Where each line begins, and where the last one ends."""
        found, at = [np.array([self.content.start])], 0
        for chunk in self.content.chunks():
            ends = np.flatnonzero(np.frombuffer(chunk, np.uint8) == ord("\n"))
            found.append(ends + (at + 1))
            at += len(chunk)
        self._starts = np.concatenate(found)
        if self._starts[-1] < at:
            self._starts = np.append(self._starts, at)
        while len(self) and not self._line(len(self) - 1).strip():
            self._starts = self._starts[:-1]
        return self._starts


class Csv:
    """A table with a header; values are text, and may hold line breaks.

    The constructor reads all rows to find where they begin, so it raises UserError at once for a
    row whose fields do not match the header.
    """

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self.content = FileContent(path)
        self._at = self.content.start  # the end of the last line that the reader got
        self._starts = array("q")
        self.header: list[str] = []
        reader = csv.reader(self._lines(), strict=True)
        try:
            self._pass_over(reader)
        except csv.Error as error:
            raise UserError(
                f"{self.name} line {reader.line_num} is not valid CSV: {error}"
            ) from error

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, row: int) -> Row:
        text = self.content.between(self._starts[row], self._starts[row + 1]).decode()
        fields = next(csv.reader(io.StringIO(text, newline=""), strict=True))
        return dict(zip(self.header, fields, strict=True))

    def crc(self) -> int:
        """The checksum of the file."""
        return self.content.crc()

    def _pass_over(self, reader: Any) -> None:
        self.header = next(reader, [])
        if len(set(self.header)) < len(self.header) or not all(self.header):
            raise UserError(f"{self.name} line 1 names a column twice or not at all: mend it")
        blank, begins = 0, self._at
        for fields in reader:
            if not fields:
                blank = blank or reader.line_num
                continue
            if blank:
                raise UserError(f"{self.name} line {blank} is empty: remove it")
            if len(fields) != len(self.header):
                raise UserError(
                    f"{self.name} line {reader.line_num} has {len(fields)} fields, the header has "
                    f"{len(self.header)}: quote fields that hold commas or line breaks"
                )
            self._starts.append(begins)
            begins = self._at
        self._starts.append(begins)

    def _lines(self) -> Iterator[str]:
        for line in self.content.lines():
            self._at += len(line)
            try:
                yield line.decode()
            except UnicodeDecodeError as error:
                raise _not_utf8(self.name, error) from error


def _not_utf8(name: str, error: UnicodeDecodeError) -> UserError:
    return UserError(f"{name} is not UTF-8 text ({error.reason}): convert it")
