"""Rows of one data file, with errors that name the file and the line."""

import csv
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from strop._files import json_of
from strop.errors import UserError
from strop.tasks.names import did_you_mean

Row = dict[str, Any]
ROWS_AT_ONCE = 4096  # of a Parquet file


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of a .jsonl, .parquet or .csv file or of a folder written by `datasets`, one by one.

    CSV values are text. Raises UserError for a missing file, an unknown extension, and content
    that cannot be read.
    """
    if os.path.isdir(path):  # unlike Path's, false for a name that no file can have
        return _read_folder(path)
    if not os.path.exists(path):
        near = did_you_mean(path.name, _siblings(path))
        raise UserError(f"data file {path} does not exist{near}: check the path")
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise UserError(
            f"data file {path} has the unknown extension {path.suffix!r}: it must be one of "
            f"{', '.join(_READERS)} or a folder saved by datasets"
        )
    return reader(path)


def _read_jsonl(path: Path) -> Iterator[Row]:
    blank = 0  # number of the first empty line that nothing has followed yet
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            blank = blank or number
            continue
        if blank:
            raise UserError(f"{path} line {blank} is empty: remove it")
        try:
            row = json_of(line)
        except ValueError as error:
            why = str(error).partition(";")[0]
            if isinstance(error, json.JSONDecodeError):
                why = f"{error.msg} at column {error.colno}"
            raise UserError(
                f"{path} line {number} is not valid JSON ({why}): write one complete object a line"
            ) from error
        if not isinstance(row, dict):
            raise UserError(
                f"{path} line {number} is a JSON {type(row).__name__}, not an object: write "
                '{"prompt": ...}'
            )
        yield _well_formed(row) if "\\u" in line else row


def _well_formed(value: Any) -> Any:
    """The value with its texts' half surrogate pairs, which no tokenizer takes, as escapes."""
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, list):
        return [_well_formed(each) for each in value]
    if isinstance(value, dict):
        return {_well_formed(key): _well_formed(each) for key, each in value.items()}
    return value


def _read_csv(path: Path) -> Iterator[Row]:
    reader = csv.reader(_lines(path), strict=True)
    blank = 0
    try:
        header = next(reader, [])
        if len(set(header)) < len(header) or not all(header):
            raise UserError(f"{path} line 1 names a column twice or not at all: mend the header")
        for fields in reader:
            if not fields:
                blank = blank or reader.line_num
                continue
            if blank:
                raise UserError(f"{path} line {blank} is empty: remove it")
            if len(fields) != len(header):
                raise UserError(
                    f"{path} line {reader.line_num} has {len(fields)} fields, the header has "
                    f"{len(header)}: quote fields that hold commas or line breaks"
                )
            yield dict(zip(header, fields, strict=True))
    except csv.Error as error:
        raise UserError(f"{path} line {reader.line_num} is not valid CSV: {error}") from error


def _read_parquet(path: Path) -> Iterator[Row]:
    import pyarrow
    from pyarrow import dataset

    folders = dataset.HivePartitioning.discover(infer_dictionary=True)
    try:
        table = dataset.dataset(path, format="parquet", partitioning=folders)
        for batch in table.to_batches(batch_size=ROWS_AT_ONCE, use_threads=False):
            yield from batch.to_pylist()
    except (pyarrow.ArrowException, OSError, ValueError, OverflowError) as error:  # or a far date
        detail = str(error).splitlines()[0]
        raise UserError(f"{path} is not a readable Parquet file: {detail}") from error


def _read_folder(path: Path) -> Iterator[Row]:
    if not (path / "dataset_info.json").exists() and not (path / "dataset_dict.json").exists():
        raise UserError(
            f"{path} is a folder that datasets did not save: give the data files themselves"
        )
    try:
        import datasets
    except ImportError as error:
        raise UserError(
            f"reading the folder {path} needs the package datasets: pip install datasets, or give "
            "the data as .parquet"
        ) from error
    loaded = datasets.load_from_disk(str(path))
    if isinstance(loaded, dict):
        splits = ", ".join(str(path / name) for name in loaded)
        raise UserError(f"{path} holds several splits: give one of {splits}")
    return iter(loaded)


def _lines(path: Path) -> Iterator[str]:
    """Lines with their ends; a leading byte order mark is dropped."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        try:
            yield from file
        except UnicodeDecodeError as error:
            raise UserError(f"{path} is not UTF-8 text ({error.reason}): convert it") from error


def _siblings(path: Path) -> list[str]:
    folder = path.parent
    return [other.name for other in folder.iterdir()] if folder.is_dir() else []


_READERS: dict[str, Callable[[Path], Iterator[Row]]] = {
    ".jsonl": _read_jsonl,
    ".parquet": _read_parquet,
    ".csv": _read_csv,
}
