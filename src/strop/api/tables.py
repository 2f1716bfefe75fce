"""Tables for a script (pandas' where it is installed, else Arrow's) and a notebook (HTML)."""

import importlib.util
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

import pyarrow

from strop.tracking.rollouts_file import read_table

NUMBERS = {"int64", "double"}  # are joined as numbers
Table = Any  # pandas.DataFrame, or pyarrow.Table where pandas is not installed


def of_rows(rows: Sequence[dict[str, Any]]) -> Table:
    """A table with the columns of all rows; a cell is empty where its row lacks the column."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    return shown(pyarrow.table({name: [row.get(name) for row in rows] for name in names}))


def of_files(paths: Sequence[Path]) -> Table:
    """The rows of a run's Parquet files one after the other, with the columns of all files.

    Raises UserError for a damaged file.
    """
    tables = [read_table(path) for path in paths]
    if not tables:
        return shown(pyarrow.table({}))
    return shown(pyarrow.concat_tables(_alike(tables), promote_options="permissive"))


def _alike(tables: Sequence[Any]) -> list[Any]:
    """The tables; a column whose types differ, other than as numbers, is cast to text."""
    kinds: dict[str, set[str]] = {}
    for table in tables:
        for field in table.schema:
            kinds.setdefault(field.name, set()).add(str(field.type))
    mixed = {name for name, found in kinds.items() if len(found - NUMBERS - {"null"})
             + bool(found & NUMBERS) > 1}  # fmt: skip
    return [
        pyarrow.table({
            name: table[name].cast("string") if name in mixed else table[name]
            for name in table.column_names
        })
        for table in tables
    ]  # fmt: skip


def shown(table: Any) -> Table:
    """An Arrow table as a pandas one, where pandas is installed."""
    return table.to_pandas() if importlib.util.find_spec("pandas") else table


def as_text(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """Cells in columns, the first one aligned left, the others right."""
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
