"""The bytes of a data file: a small file is read at once, a large one as needed."""

import os
import weakref
import zlib
from collections.abc import Iterator
from pathlib import Path

from strop.support.errors import UserError

HELD = 2**26  # most bytes of a file, or of a table, that are held in memory
CHUNK = 2**24
MARK = b"\xef\xbb\xbf"  # the byte order mark that some programs put before UTF-8


class FileContent:
    """A file that is read once from start to end, and then at random places."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = os.open(path, os.O_RDONLY)
        weakref.finalize(self, os.close, self.file)
        self.size = os.fstat(self.file).st_size
        self._stamp = self._now()
        self._held = b"".join(self._read()) if self.size <= HELD else None
        if self._held is not None:
            self.size = len(self._held)
        self.start = len(MARK) if self.between(0, len(MARK)) == MARK else 0

    def chunks(self) -> Iterator[bytes]:
        """The whole content, in pieces."""
        return iter((self._held,)) if self._held is not None else self._read()

    def lines(self) -> Iterator[bytes]:
        """Lines with their ends, after the byte order mark; \\r alone also ends a line."""
        rest, skip = b"", self.start
        for chunk in self.chunks():
            whole = rest + chunk[skip:]
            skip = 0
            end = whole.rfind(b"\n") + 1
            rest = whole[end:]
            yield from whole[:end].splitlines(keepends=True)
        yield from rest.splitlines(keepends=True)

    def between(self, start: int, end: int) -> bytes:
        """Bytes from `start` to `end`. Raises UserError where the file has changed meanwhile."""
        if self._held is not None:
            return self._held[start:end]
        if self._now() != self._stamp:
            raise UserError(
                f"{self.path} was changed while a run reads it: restore it and resume the run, or "
                "start a new run"
            )
        return os.pread(self.file, end - start, start)

    def crc(self) -> int:
        """The checksum of the whole content."""
        found = 0
        for chunk in self.chunks():
            found = zlib.crc32(chunk, found)
        return found

    def _now(self) -> tuple[int, int]:
        stat = os.fstat(self.file)
        return stat.st_size, stat.st_mtime_ns

    def _read(self) -> Iterator[bytes]:
        at = 0
        while chunk := os.pread(self.file, CHUNK, at):
            at += len(chunk)
            yield chunk
