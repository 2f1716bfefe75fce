"""Tables for a script or notebook: pandas' where it is installed, else Arrow's."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import parquet

Table = Any  # pandas.DataFrame, or pyarrow.Table where pandas is not installed


def of_rows(rows: Sequence[dict[str, Any]]) -> Table:
    """A table with every column of some row, empty where a row lacks it."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return shown(pyarrow.table({name: [row.get(name) for row in rows] for name in names}))


def of_files(paths: Sequence[Path]) -> Table:
    """The rows of Parquet files one after the other, with every column of some file."""
    tables = [parquet.read_table(path, partitioning=None) for path in paths]
    whole = pyarrow.concat_tables(tables, promote_options="permissive") if tables else {}
    return shown(whole if tables else pyarrow.table({}))


def shown(table: Any) -> Table:
    """An Arrow table as a pandas one, where pandas is installed."""
    return table.to_pandas() if importlib.util.find_spec("pandas") else table


def as_text(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Cells in columns, the first to the left, the others to the right."""
    rows = [head, *lines]
    widths = [max(len(row[n]) for row in rows) for n in range(len(head))]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]) for row in rows
    )
