"""Converts values that are given for options to the options' declared types."""

import functools
import types
import typing
from collections.abc import Callable
from typing import Any, TypeVar

from strop.method.schedule import Schedule
from strop.support.errors import UserError, check_value

P = TypeVar("P")
WORDS = {
    bool: "true or false", int: "a whole number", float: "a number", str: "text", tuple: "a list",
}  # fmt: skip


@functools.cache
def declared(kind: Any) -> dict[str, Any]:
    """The types of a dataclass's fields or a function's parameters by name; empty where they cannot
    be resolved.
    """
    try:
        return typing.get_type_hints(kind)
    except Exception:  # a user's part may use names that do not exist at run time
        return {}


def fitting(where: str, hint: Any, old: Any, new: Any) -> Any:
    """Convert `new` to a value of the option `where`, whose type is `hint` and old value `old`.

    Whole numbers may stand for floats, lists for tuples, schedules for numbers. Raises UserError.
    """
    check_value(new, where)
    if isinstance(new, float) and new != new:
        raise UserError(f"{where} must be a number, it is {new}")
    if isinstance(new, list):
        new = tuple(new)
    if isinstance(new, tuple) and any(isinstance(each, float) and each != each for each in new):
        raise UserError(f"{where} takes numbers, and one is nan: {new}")
    kinds = _kinds(hint, old)
    if str in kinds and new is None and type(None) not in kinds:
        new = "none"  # the notation reads the word none as None
    for kind in kinds:
        if isinstance(new, Schedule) and kind in (int, float):
            return new
        if _is(kind, new):
            return _as(kind, new)
    named = [kind for kind in kinds if kind is not type(None)]
    if not named or any((typing.get_origin(kind) or kind) not in WORDS for kind in named):
        return new  # a type that this function does not know
    raise UserError(f"{where} takes {' or '.join(map(_words, named))}, got {new!r}")


def made(name: str, make: Callable[[], P]) -> P:
    """The part that `make` returns; what its class refuses by a ValueError is a UserError."""
    try:
        return make()
    except UserError:
        raise
    except ValueError as error:
        raise UserError(f"{name}: {error}") from error


def _kinds(hint: Any, old: Any) -> tuple[Any, ...]:
    if hint is None or isinstance(hint, str):
        hint = type(old)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return tuple(kind for kind in typing.get_args(hint) if kind is not Schedule)
    return (hint,)


def _is(kind: Any, new: Any) -> bool:
    """Whether the value is of this type or may stand for one."""
    if kind in (int, float):
        if isinstance(new, bool) or not isinstance(new, int | float):
            return False
        return kind is float or isinstance(new, int) or (new.is_integer() and abs(new) < 2**63)
    if typing.get_origin(kind) is not tuple:
        return isinstance(kind, type) and isinstance(new, kind)
    inside = _inside(kind, len(new)) if isinstance(new, tuple) else None
    return inside is not None and len(inside) == len(new) and all(map(_is, inside, new))


def _as(kind: Any, new: Any) -> Any:
    if kind in (int, float):
        return kind(new)
    if typing.get_origin(kind) is tuple:
        return tuple(map(_as, _inside(kind, len(new)), new))
    return new


def _inside(kind: Any, length: int) -> tuple[Any, ...]:
    """The types of a tuple's items."""
    inside = typing.get_args(kind)
    return inside[:1] * length if len(inside) == 2 and inside[1] is ... else inside


def _words(kind: Any) -> str:
    """The type in words, as in "takes a list of 2 numbers"."""
    inside = typing.get_args(kind)
    if not inside:
        return WORDS[kind]
    of = {str: "texts", int: "whole numbers"}.get(inside[0], "numbers")
    return f"a list of {of}" if inside[-1] is ... else f"a list of {len(inside)} {of}"
