"""Files of tokens that outlive a step: the run's folder `stores`, and the newest in memory.

    RUN/stores/about.json                  their owner: checksums of the run and its tokenizer
    RUN/stores/000012-1f3a90bc.pt          what was stored at step 12, with its checksum

A file is written once and never changed. A part's state refers to it by a number made of step
and checksum, so a state finds exactly what it stored or nothing.
"""

import json
import os
import zlib
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from strop.method.services import FILE
from strop.support.errors import RunStopped, UserError
from strop.support.files import json_of
from strop.support.writing import write_whole, writing

ABOUT = "about.json"
IN_MEMORY = 2**28  # bytes
WHOSE = {"run": "another run", "tokenizer": "a run with another tokenizer"}


def files_in(state: Mapping[str, Any]) -> set[int]:
    """The numbers of all files that the parts' state refers to."""
    found: set[int] = set()
    for kept in state.values():
        columns = kept.get("columns") if isinstance(kept, Mapping) else None
        if isinstance(columns, Mapping) and FILE in columns:
            found |= set(columns[FILE].unique().tolist())
    return found - {0}


class RunStores:
    """`services.Stores` of a run; without a folder everything stays in memory."""

    def __init__(self) -> None:
        self.folder: Path | None = None
        self.owner: dict[str, int] = {}
        self.writes = True
        self.kept: set[int] = set()  # files that the state of a checkpoint refers to
        self.ahead = False  # whether another process of the run writes files of later steps
        self._near: OrderedDict[int, dict[str, Tensor]] = OrderedDict()

    def open(self, folder: Path, owner: Mapping[str, int], writes: bool = True) -> None:
        """Store files in this folder from now on. Raises UserError if another run's are there.

        writes: False where another process of the run writes and deletes the same files.
        """
        self.folder, self.owner, self.writes = folder, dict(owner), writes
        path = folder / ABOUT
        # A stop before the owner was written leaves a folder that holds nothing.
        if not path.exists() and not any(folder.glob("*.pt")):
            return
        try:
            found = json_of(path.read_bytes())
            wrong = [whose for name, whose in WHOSE.items() if found[name] != self.owner[name]]
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise UserError(
                f"{path} cannot be read, so the owner of the store is unknown: put it back"
            ) from error
        if wrong:
            raise UserError(
                f"{folder} is the store of {wrong[0]}: put back the one that was there, or start a "
                "new run"
            )

    def put(self, step: int, columns: Mapping[str, Tensor]) -> int:
        """Write a file; returns its number."""
        table = {name: columns[name].cpu().contiguous() for name in sorted(columns)}
        number = (step << 32) | _sum(table)
        self._keep_near(number, table)
        if self.folder is not None and self.writes:
            self._write(self._path(number), table)
        return number

    def _write(self, path: Path, table: dict[str, Tensor]) -> None:
        failures = (OSError, RuntimeError)
        what, needed = f"the store's {path.name}", _bytes(table)
        with writing(path.parent, what, needed, failures, RunStopped):
            path.parent.mkdir(parents=True, exist_ok=True)
            if not (path.parent / ABOUT).exists():
                write_whole(path.parent / ABOUT, json.dumps(self.owner))
            unfinished = path.with_name(f".{path.name}.unfinished")
            with unfinished.open("wb") as file:
                torch.save(table, file)
                file.flush()
                os.fsync(file.fileno())
            unfinished.rename(path)

    def get(self, number: int) -> Mapping[str, Tensor]:
        """The columns of a file. Raises UserError where it is missing or was changed."""
        if number in self._near:
            self._near.move_to_end(number)
            return self._near[number]
        table = self._read(number)
        self._keep_near(number, table)
        return table

    def _read(self, number: int) -> dict[str, Tensor]:
        path = self._path(number)
        if not path.exists():
            raise UserError(f"the store lacks {path}, which the checkpoint refers to: put it back")
        try:
            table: dict[str, Tensor] = torch.load(path, weights_only=True)
            whole = _sum(table) == number & 0xFFFFFFFF
        except Exception as error:  # damage shows in many ways
            raise UserError(f"the store's {path} is damaged: put it back") from error
        if not whole:
            raise UserError(f"the store's {path} has changed: put it back as it was")
        return table

    def check(self, numbers: Iterable[int]) -> None:
        """Raise UserError for the first of these files that is missing or was changed."""
        for number in sorted(numbers):
            self._read(number)

    def sweep(self, live: set[int], done: int) -> None:
        """Delete files that neither the current state (`live`) nor a checkpoint refers to.

        done: the current step; files that a process ahead has stored for later steps stay.
        """
        for number in self._near.keys() - live:
            del self._near[number]
        if self.folder is None or not self.writes:
            return
        names = {self._path(number).name for number in live | self.kept}
        for path in (*self.folder.glob("*.pt"), *self.folder.glob(".*.unfinished")):
            if path.name not in names and not (self.ahead and _later(path, done)):
                path.unlink()

    def _path(self, number: int) -> Path:
        assert self.folder is not None
        return self.folder / f"{number >> 32:06d}-{number & 0xFFFFFFFF:08x}.pt"

    def _keep_near(self, number: int, table: dict[str, Tensor]) -> None:
        """Keep a file in memory; with a folder, drop the oldest files beyond the limit."""
        self._near[number] = table
        if self.folder is None:
            return
        held = sum(map(_bytes, self._near.values()))
        while held > IN_MEMORY and len(self._near) > 1:
            _, gone = self._near.popitem(last=False)
            held -= _bytes(gone)


def _later(path: Path, done: int) -> bool:
    """Whether a file is of a later step, or unfinished."""
    return path.name.startswith(".") or int(path.name.partition("-")[0]) > done


def _bytes(table: Mapping[str, Tensor]) -> int:
    return sum(column.numel() * column.element_size() for column in table.values())


def _sum(table: Mapping[str, Tensor]) -> int:
    """CRC-32 of names, dtypes, shapes and values."""
    crc = 0
    for name in sorted(table):
        column = table[name].contiguous()
        crc = zlib.crc32(f"{name} {column.dtype} {tuple(column.shape)}".encode(), crc)
        crc = zlib.crc32(column.view(torch.uint8).numpy().tobytes() if column.numel() else b"", crc)
    return crc
