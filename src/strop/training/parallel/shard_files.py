"""Files of sharded tensors: each process writes its part, and any number of processes read them.

They are written by torch.distributed.checkpoint. A reading process loads only its own part.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from enum import EnumMeta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint import (
    CheckpointException,
    FileSystemReader,
    FileSystemWriter,
    load,
    save,
)
from torch.distributed.checkpoint.metadata import Metadata

from strop.support.errors import UserError

FOLDER = "shards"
MARK = "in shards"  # key of the placeholder for a tensor in the file it was removed from
WRITTEN = {
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("pathlib", "PosixPath"),
    ("pathlib._local", "PosixPath"),  # of Python 3.13
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    *(
        ("torch.distributed.checkpoint.metadata", name)
        for name in (
            "Metadata", "TensorStorageMetadata", "TensorProperties", "ChunkStorageMetadata",
            "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING",
        )
    ),
}  # fmt: skip


class _Reader(FileSystemReader):
    """Reads the metadata once instead of with every tensor, and runs no code from the file."""

    known: Metadata | None = None

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        if self.known is None:
            with (Path(self.path) / ".metadata").open("rb") as file:
                self.known = _Table(file).load()
        return self.known


class _Table(pickle.Unpickler):
    """Unpickles torch's metadata about where tensors lie, and refuses anything else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("builtins", "getattr"):  # in the first releases of Python 3.11
            return _member
        plain = module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        if not plain and (module, name) not in WRITTEN:
            raise pickle.UnpicklingError(f"{module}.{name} does not belong there")
        return super().find_class(module, name)


def _member(kind: Any, name: str) -> Any:
    """A member of an enumeration."""
    if not isinstance(kind, EnumMeta):
        raise pickle.UnpicklingError(f"{name} of {kind} does not belong there")
    return kind[name]


@dataclass(frozen=True)
class OnDisk:
    """A tensor in such files, which can be read into parts of any layout."""

    reader: _Reader
    name: str
    shape: torch.Size
    dtype: torch.dtype

    def like(self, weight: Tensor) -> Tensor:
        """Read the tensor in the layout of `weight`, which has its shape. Raises UserError."""
        found = torch.empty_like(weight, dtype=self.dtype, requires_grad=False)
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "torch.distributed is disabled")
                load({self.name: found}, storage_reader=self.reader, no_dist=True)
        except CheckpointException as error:  # a BaseException
            why = _first(error)
            raise UserError(f"{self.reader.path} cannot be read: {why}") from error
        return found


def split(value: Any, name: str, parts: dict[str, Tensor]) -> Any:
    """Move sharded tensors of nested tables and lists into `parts`, and leave placeholders."""
    if hasattr(value, "to_local"):
        parts[name] = value
        return {MARK: name}
    if isinstance(value, Mapping):
        return {key: split(inner, f"{name}/{key}", parts) for key, inner in value.items()}
    if isinstance(value, list):
        return [split(inner, f"{name}/{place}", parts) for place, inner in enumerate(value)]
    return value


def write(parts: Mapping[str, Tensor], folder: Path, group: Any) -> None:
    """Write the parts of all processes in `group`, each of which calls this.

    Raises OSError in all processes when one cannot write.
    """
    try:
        save(dict(parts), storage_writer=FileSystemWriter(folder), process_group=group)
    except CheckpointException as error:  # a BaseException
        why = _first(error)
        raise why if isinstance(why, OSError) else OSError(str(why)) from error


def joined(value: Any, folder: Path) -> Any:
    """Undo `split`: replace its placeholders by the tensors in `folder`, to be read later."""
    if not (folder / ".metadata").is_file():
        return value
    reader = _Reader(folder)
    return _joined(value, reader, reader.read_metadata().state_dict_metadata)


def _joined(value: Any, reader: _Reader, known: Mapping[str, Any]) -> Any:
    if isinstance(value, Mapping):
        if set(value) == {MARK}:
            found = known[value[MARK]]
            return OnDisk(reader, value[MARK], found.size, found.properties.dtype)
        return {key: _joined(inner, reader, known) for key, inner in value.items()}
    if isinstance(value, list):
        return [_joined(inner, reader, known) for inner in value]
    return value


def _first(error: CheckpointException) -> BaseException:
    """Returns the error of the first process that failed."""
    return error.failures[min(error.failures)][0]
