"""Rows of text files by index: one pass finds where each begins, then rows are read as needed."""

import csv
import io
import json
import re
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from strop.data.file_content import FileContent
from strop.support.errors import UserError
from strop.support.files import json_of, well_formed

Row = dict[str, Any]
DECODER = json.JSONDecoder()
# Before the first element of a list, and between two or before the end.
OPENING, BETWEEN = re.compile(r"\s*\[\s*"), re.compile(r"\s*+(?:,\s*+(?!\])|(?=\]))")
FIRST = 4096  # bytes of a file, enough to see how it begins
csv.field_size_limit(2**31 - 1)  # its own 131,072 characters are fewer than a long document has


class JsonLines:
    """A file with one object per line; empty lines at its end do not count."""

    wanted = "one complete object a line"

    def __init__(self, path: Path) -> None:
        self.name = str(path)
        self.content = FileContent(path)
        self._starts = self._places()

    def __len__(self) -> int:
        return len(self._starts) - 1

    def __getitem__(self, row: int) -> Row:
        """A row. Raises UserError, naming the line."""
        text = self._text(row)
        try:
            found = json_of(text, once=True)
        except ValueError as error:
            raise _not_json(self._where(row), error, self.wanted) from error
        if not isinstance(found, dict):
            raise UserError(
                f"{self._where(row)} is a JSON {type(found).__name__}, not an object: write "
                '{"prompt": ...}'
            )
        return well_formed(found) if "\\u" in text else found

    def crc(self) -> int:
        """The checksum of the file."""
        return self.content.crc()

    def _where(self, row: int) -> str:
        return f"{self.name} line {row + 1}"

    def _text(self, row: int) -> str:
        line = self._line(row).rstrip()  # so that a line cut short ends in its own last column
        if not line:
            raise UserError(f"{self._where(row)} is empty: remove it")
        return _decoded(line, self.name)

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


class JsonList(JsonLines):
    """A file with one list of objects. Its text is held in memory, however large it is."""

    wanted = "one list of complete objects"

    def __len__(self) -> int:
        return len(self._starts)

    def _where(self, row: int) -> str:
        line = self._whole.count("\n", 0, self._starts[row]) + 1
        return f"{self.name} row {row + 1}, from line {line},"

    def _text(self, row: int) -> str:
        return self._whole[self._starts[row] : self._ends[row]]

    def _places(self) -> Any:
        """Where each element begins; keeps where it ends, too."""
        content = b"".join(self.content.chunks())[self.content.start :]
        self._whole, self._ends = _decoded(content, self.name), array("q")
        starts, whole = array("q"), self._whole
        opening = OPENING.match(whole)
        at = opening.end() if opening else 0
        try:
            while not whole.startswith("]", at):
                starts.append(at)
                end = DECODER.raw_decode(whole, at)[1]
                self._ends.append(end)
                found = BETWEEN.match(whole, end)
                if found is None:
                    raise json.JSONDecodeError("Expecting ',' or ']'", whole, end)
                at = found.end()
            if whole[at + 1 :].strip():
                raise json.JSONDecodeError("Extra data behind the list", whole, at + 1)
        except (ValueError, RecursionError) as error:
            raise _not_json(self.name, error, self.wanted) from error
        return starts


def json_file(path: Path) -> JsonLines:
    """Open a file of JSON: one list of objects, or JSON Lines under that name. Raises UserError."""
    content = FileContent(path)
    head = content.between(content.start, content.start + FIRST).lstrip()
    return JsonList(path) if head.startswith(b"[") else JsonLines(path)


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


def _decoded(text: bytes, name: str) -> str:
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise _not_utf8(name, error) from error


def _not_json(where: str, error: Exception, wanted: str) -> UserError:
    why = str(error).partition(";")[0]
    if isinstance(error, json.JSONDecodeError):
        line = f"line {error.lineno}, " if error.lineno > 1 else ""
        why = f"{error.msg} at {line}column {error.colno}"
    return UserError(f"{where} is not valid JSON ({why}): write {wanted}")


def _not_utf8(name: str, error: UnicodeDecodeError) -> UserError:
    return UserError(f"{name} is not UTF-8 text ({error.reason}): convert it")
