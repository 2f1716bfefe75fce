"""Checks that the tensors parts take and return have the shapes and dtypes of their columns.

The suffix of a column's name gives its table, its record gives its dtype. Inside `checked()` both
are checked at every call of a part; tests of parts and `strop train --debug` use it.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from strop.batch.batch import SIZED_BY, level_of
from strop.batch.columns import KNOWN, Column
from strop.method import part as parts
from strop.method.part import Columns, Curated, Result, Selected, Use
from strop.support.errors import UserError

ROWS = {"T": "tokens", "K": "turns", "B": "rollouts", "P": "prompts"}
# The second axis of columns with these suffixes.
AXES = {"BM": "components", "TV": "vocabulary", "PL": "positions"}


@contextmanager
def checked(on: bool = True) -> Iterator[None]:
    """Check every call of a part inside the context; without `on` nothing changes."""
    before = parts.observer
    parts.observer = look if on else before
    try:
        yield
    finally:
        parts.observer = before


def look(use: Use, batch: Columns | None, arguments: Mapping[str, Any], result: Result) -> None:
    """Raise UserError for a tensor that a part read or gave and that does not fit its column."""
    if batch is None:
        return
    for read in parts.reads(use):
        if isinstance(value := arguments.get(read.parameter), Tensor):
            _check(use, batch, "reads", read.column, value)
    for column, value in given(use, result).items():
        _check(use, batch, "gives", column, value)


def given(use: Use, result: Result) -> dict[str, Tensor]:
    """The tensors of a result, by column."""
    value, names = result.value, parts.writes(use)
    if isinstance(value, Selected):
        return {"gradient_T": value.gradient_T, "denominator_T": value.denominator_T}
    if isinstance(value, Curated):
        return {"scored_B": value.keep_B}  # keep_B is a mask of rollouts, as scored_B is
    values = value if isinstance(value, tuple) else (value,)
    if len(names) != len(values):  # `part.write` raises for this
        return {}
    pairs = zip(names, values, strict=True)
    return {name: one for name, one in pairs if isinstance(one, Tensor)}


def _check(use: Use, batch: Columns, verb: str, column: str, value: Tensor) -> None:
    suffix = column.rpartition("_")[2]
    level, record = level_of(column), _record(use, column)
    rank = 0 if not level else 2 if suffix in AXES else 1
    rows = batch[SIZED_BY[level]] if level and SIZED_BY[level] in batch else None
    size = rows.shape[0] if isinstance(rows, Tensor) else None
    fits = value.dim() == rank and (rank == 0 or size is None or value.shape[0] == size)
    if not fits:
        named = [f"{ROWS[level]}={'any' if size is None else size}"] if level else []
        expected = ", ".join([*named, *([AXES[suffix]] if rank == 2 else [])])
        _fail(use, verb, column, f"the shape [{expected}]", str(list(value.shape)))
    if record is not None and not _is(record.dtype, value.dtype):
        _fail(use, verb, column, record.dtype, str(value.dtype).removeprefix("torch."))


def _is(wanted: str, dtype: torch.dtype) -> bool:
    """Whether a tensor's dtype is one of "float", "int" or "bool"."""
    if wanted == "float":
        return dtype.is_floating_point
    whole = not dtype.is_floating_point and not dtype.is_complex
    return dtype is torch.bool if wanted == "bool" else whole and dtype is not torch.bool


def _record(use: Use, column: str) -> Column | None:
    """The record of a column, or of the one that it stands for at this place; None: unknown."""
    declared = {one.name: one for one in getattr(use.part, "declares", ())}
    wires = (*getattr(use.part, "columns", {}).items(), *use.columns)
    names = (column, *(own for own, here in wires if here == column))
    known = {**KNOWN, **declared}
    return next((known[name] for name in names if name in known), None)


def _fail(use: Use, verb: str, column: str, expected: str, found: str) -> None:
    raise UserError(f"part {use.label} {verb} {column} as {found}, it must be {expected}")
