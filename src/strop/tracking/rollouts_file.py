"""Reads the Parquet files of a run's recorded steps: files of rollouts, and files of tokens."""

import os
import re
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from strop.support.errors import UserError


def rollouts_files(folder: Path) -> list[Path]:
    """A run's files of rollouts, in the order of their steps."""
    found = (folder / "rollouts").glob("step-*.parquet")
    return sorted(found, key=lambda path: (len(path.name), path))  # a name grows at step 1,000,000


def read_table(path: Path, columns: Sequence[str] = ()) -> pa.Table:
    """The rows of such a file; columns: read only these, all of which the file must have.

    Raises UserError for a damaged file, with what to do about it.
    """
    try:
        # As a file, not as a data set, which would take a folder named `lr=1` for a column.
        with pq.ParquetFile(path) as file:
            lacking = [name for name in columns if name not in file.schema_arrow.names]
            if lacking:
                raise UserError(damaged(path, f"it has no column {lacking[0]}"))
            table = file.read([*columns] or None)
        table.validate(full=True)  # finds invalid text
        return table
    except OSError as error:
        if error.errno is not None:
            raise UserError(f"cannot read {path}: {os.strerror(error.errno)}") from error
        raise UserError(damaged(path, _why(path))) from error
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise UserError(damaged(path, _why(path))) from error


def damaged(path: Path, why: str) -> str:
    """The message about a file that is not as the run wrote it, with what to do."""
    number = re.search(r"\d+", path.stem)
    step = f"step {int(number[0])}" if number else "its step"
    return (
        f"{path} is damaged ({why}): remove it to continue without it, or resume the run from a "
        f"checkpoint before {step} (--step), which writes it again"
    )


def _why(path: Path) -> str:
    with path.open("rb") as file:
        head = file.read(4)
        size = file.seek(0, 2)
        file.seek(max(size - 4, 0))
        tail = file.read(4)
    if head != b"PAR1":
        return "it is not a Parquet file" if size else "it is empty"
    return "it was cut" if tail != b"PAR1" else "its bytes are not those that were written"
