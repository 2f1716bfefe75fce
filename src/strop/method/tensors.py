"""Checks that the tensors parts take have the shapes and dtypes of their columns.

Those that parts return are checked at every call of a part; those that they take only inside
`checked()`, which tests of parts and `strop train --debug` use.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from strop.method import part as parts
from strop.method.part import Columns, Result, Use, check


@contextmanager
def checked(on: bool = True) -> Iterator[None]:
    """Check what parts read, at every call inside the context; without `on` nothing changes."""
    before = parts.observer
    parts.observer = look if on else before
    try:
        yield
    finally:
        parts.observer = before


def look(use: Use, batch: Columns | None, arguments: Mapping[str, Any], result: Result) -> None:
    """Raise UserError for a tensor that a part read and that does not fit its column."""
    if batch is None:
        return
    for read in parts.reads(use):
        if isinstance(value := arguments.get(read.parameter), Tensor):
            check(use, batch, "reads", read.column, value)
