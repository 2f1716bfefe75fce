"""Tables: CSV files, and Markdown."""

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from strop.support.writing import write_whole


def read_rows(path: Path) -> list[dict[str, str]]:
    """The rows of a table; none where there is no file. Raises OSError or UnicodeDecodeError."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def write_rows(path: Path, head: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write a table whole; the cells that a row lacks are empty. Raises OSError.

    head: the columns; a row may have no others.
    """
    text = io.StringIO()
    table = csv.DictWriter(text, head, restval="", lineterminator="\n")
    table.writeheader()
    table.writerows(rows)
    write_whole(path, text.getvalue())


def markdown_table(head: Sequence[object], rows: Iterable[Sequence[object]]) -> str:
    """A table in Markdown, without a line break at its end."""
    whole = [head, ["---"] * len(head), *rows]
    escaped = [[str(cell).replace("|", "\\|") for cell in row] for row in whole]
    return "\n".join(f"| {' | '.join(row)} |" for row in escaped)
