"""Tables for a script, pandas' where it is installed, else Arrow's; and for a notebook, as HTML."""

import importlib.util
from collections.abc import Iterable, Sequence
from html import escape
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


TABLE = "border-collapse: collapse; font-size: 13px"
CELL = "text-align: left; vertical-align: top; padding: 3px 14px 3px 0"


def as_html(title: str, rows: Iterable[Sequence[str]], head: Sequence[str] = ()) -> str:
    """A titled table of text for a notebook; the first cell of a row is its name."""
    body = "".join(f"<tr>{''.join(_cell(cell) for cell in row)}</tr>" for row in rows)
    top = "".join(f'<th style="{CELL}">{escape(name)}</th>' for name in head)
    return (
        f"<div><b>{escape(title)}</b>"
        f'<table style="{TABLE}">{f"<thead><tr>{top}</tr></thead>" if top else ""}'
        f"<tbody>{body}</tbody></table></div>"
    )


def _cell(text: str) -> str:
    return f'<td style="{CELL}">{"<br>".join(escape(text).splitlines())}</td>'
