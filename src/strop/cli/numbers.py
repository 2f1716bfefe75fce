"""Options that take several comma-separated numbers."""

from typing import TypeVar

from strop.support.errors import UserError

N = TypeVar("N", int, float)


def numbers(option: str, text: str, kind: type[N], least: float | None = None) -> tuple[N, ...]:
    """The numbers in an option's text. Raises UserError for non-numbers and those below `least`."""
    try:
        found = tuple(kind(piece) for piece in text.split(","))
    except ValueError:
        found = ()
    if not found or (least is not None and not all(each >= least for each in found)):
        what = "whole numbers" if kind is int else "numbers"
        bound = "" if least is None else f" of at least {least:g}"
        raise UserError(f"{option} takes {what}{bound} with commas between them, not {text!r}")
    return found
