"""Rows of tables by index: Parquet files, and folders and names that `datasets` reads."""

import itertools
import re
import tempfile
import zlib
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from strop.data import file_content
from strop.data.file_content import FileContent
from strop.support.errors import UserError, first_line, needs_extra
from strop.support.hub import trouble_with
from strop.support.writing import writing

Row = dict[str, Any]
ROWS_AT_ONCE = 4096  # of a Parquet file
HUB = "hf:"
_HUB = re.compile(
    r"hf:(?P<name>[^:\[\]@]+)(@(?P<revision>[^:\[\]]+))?"
    r"(:(?P<config>[^:\[\]]+))??(:(?P<split>[^:\[\]]+(\[[^\]]*\])?))?"
)


class Parquet:
    """A Parquet file, decoded for random access: in memory, or, beyond `file_content.HELD` bytes,
    in a file without a name, which disappears with the process.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.name = path, str(path)
        from pyarrow import parquet

        with _readable(self.name):
            file = parquet.ParquetFile(path)
            pieces = file.iter_batches(ROWS_AT_ONCE, use_threads=False)
        with file:
            self._pieces = _at_hand(_read(pieces, self.name), file.schema_arrow, self.name)
        self._ends = array("q", itertools.accumulate(piece.num_rows for piece in self._pieces))

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, row: int) -> Row:
        """A row. Raises UserError for values that Python does not know, such as a far date."""
        piece = bisect_right(self._ends, row)
        before = self._ends[piece - 1] if piece else 0
        with _readable(self.name):
            (found,) = self._pieces[piece].slice(row - before, 1).to_pylist()
        return unfilled(found)

    def crc(self) -> int:
        """The checksum of the file."""
        return FileContent(self.path).crc()


def unfilled(row: Row) -> Row:
    """The row without the keys that a table adds to calls and descriptions of tools: there every
    object of a column has the keys of all, None where it had none.
    """
    return {name: _bare(each) if name == "tools" else _said(each) for name, each in row.items()}


def _said(value: Any) -> Any:
    """The value; messages without such keys in their calls."""
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        return value
    if not any(each.get("role") and each.get("tool_calls") for each in value):
        return value
    return [{**each, "tool_calls": _bare(each.get("tool_calls"))} for each in value]


def _bare(value: Any) -> Any:
    if isinstance(value, list):
        return [_bare(each) for each in value]
    if isinstance(value, dict):
        return {name: _bare(each) for name, each in value.items() if each is not None}
    return value


@contextmanager
def _readable(name: str) -> Iterator[None]:
    """Turn errors of Arrow inside the context into a UserError that names the file."""
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:  # or a far date
        why = first_line(error)
        raise UserError(f"{name} is not a readable Parquet file: {why}") from error


def _read(pieces: Iterable[Any], name: str) -> Iterator[Any]:
    """The pieces of a table. Raises UserError for one that cannot be read."""
    with _readable(name):
        yield from pieces


def _at_hand(pieces: Iterable[Any], schema: Any, name: str) -> list[Any]:
    """The pieces of a table in memory, or, where they are large, mapped from a file."""
    held, size = [], 0
    rest = iter(pieces)
    for piece in rest:
        held.append(piece)
        size += piece.nbytes
        if size > file_content.HELD:
            return _spooled(itertools.chain(_emptying(held), rest), schema, name)
    return [piece for piece in held if piece.num_rows]


def _emptying(held: list[Any]) -> Iterator[Any]:
    """Yield the pieces in order and drop each from the list, so that its memory can be freed."""
    held.reverse()
    while held:
        yield held.pop()


def _spooled(pieces: Iterable[Any], schema: Any, name: str) -> list[Any]:
    """Write the pieces to a file in the folder for temporary files (TMPDIR) and map it."""
    import pyarrow as pa

    folder = Path(tempfile.gettempdir())
    with writing(folder, f"the rows of {name}"):
        with tempfile.NamedTemporaryFile(prefix="strop-rows-", dir=folder) as file:
            with pa.ipc.new_file(file, schema) as writer:
                for piece in pieces:
                    writer.write_batch(piece)
            file.flush()
            mapped = pa.ipc.open_file(pa.memory_map(file.name))
        found = [mapped.get_batch(number) for number in range(mapped.num_record_batches)]
    return [piece for piece in found if piece.num_rows]


class Saved:
    """A data set of the package `datasets`, which maps its files into memory itself."""

    def __init__(self, name: str, found: Any) -> None:
        self.name, self.found = name, found

    def __len__(self) -> int:
        return len(self.found)

    def __getitem__(self, row: int) -> Row:
        try:
            return unfilled(self.found[row])
        except Exception as error:  # of any type, as in `folder`
            raise UserError(
                f"{self.name}, row {row + 1}, cannot be read: {type(error).__name__}: {error}"
            ) from error

    def crc(self) -> int:
        """The checksum of the fingerprint that `datasets` gives it."""
        return zlib.crc32(str(getattr(self.found, "_fingerprint", "")).encode())


def folder(path: Path) -> Saved:
    """Open a folder that `save_to_disk` wrote. Raises UserError."""
    if not (path / "dataset_info.json").exists() and not (path / "dataset_dict.json").exists():
        raise UserError(
            f"{path} is a folder that datasets did not save: give its data files, or hf:{path}"
        )
    package = _package(f"reading the folder {path}")
    try:
        loaded = package.load_from_disk(str(path))
        if not isinstance(loaded, dict):  # reading beyond a file's end would end the process
            loaded.data.validate(full=True)
    except Exception as error:  # for damaged files `datasets` raises errors of any type
        why = " ".join(str(error).split()) or type(error).__name__
        raise UserError(f"{path} cannot be read as a saved data set: {why}") from error
    if isinstance(loaded, dict):
        splits = ", ".join(str(path / name) for name in loaded)
        raise UserError(f"{path} holds several splits: give one of {splits}")
    if loaded.format["type"]:  # of tensors or arrays, which no reward expects
        loaded = loaded.with_format(None)
    return Saved(str(path), loaded)


def from_hub(text: str) -> Saved:
    """Load `hf:NAME[@REVISION][:CONFIG][:SPLIT]`; the split is `train` unless it is given.

    Raises UserError.
    """
    given = _HUB.fullmatch(text)
    if given is None:
        raise UserError(
            f"{text!r} is no name of a data set: write hf:NAME, hf:NAME:SPLIT or "
            "hf:NAME:CONFIG:SPLIT"
        )
    package = _package(f"reading {text}")
    try:
        is_here = Path(given["name"]).exists() or _was_read(package, given["name"])
        if not is_here and (trouble := trouble_with(given["name"], "dataset")):
            raise UserError(trouble)
        found = package.load_dataset(
            given["name"], given["config"], split=given["split"] or "train",
            revision=given["revision"],
        )  # fmt: skip
    except Exception as error:  # hub, disk and readers of files may raise anything
        why = first_line(error).rstrip(".")
        raise UserError(
            f"{text} cannot be read: {why}. Check name, config and split; without a "
            "network there is only what was read before (HF_HOME), or a folder of save_to_disk"
        ) from error
    return Saved(text, found)


def _was_read(package: Any, name: str) -> bool:
    """Whether the cache of `datasets`, where names are in snake case, has a data set."""
    owner, _, own = name.rpartition("/")
    kept = package.naming.camelcase_to_snakecase(own)
    place = f"{owner}___{kept}" if owner else kept
    return (Path(package.config.HF_DATASETS_CACHE) / place).exists()


def _package(what: str) -> Any:
    with needs_extra(f"{what} needs the package datasets", "data"):
        import datasets
    return datasets
