"""Values that are given for options, fitted to what each option is declared to hold."""

import functools
import types
import typing
from typing import Any

from strop.method.schedule import Schedule
from strop.support.errors import UserError, check_value

WORDS = {
    bool: "true or false", int: "a whole number", float: "a number", str: "text", tuple: "a list",
}  # fmt: skip


@functools.cache
def declared(kind: type) -> dict[str, Any]:
    """The types of a dataclass's fields by name; of those that cannot be read, none."""
    try:
        return typing.get_type_hints(kind)
    except Exception:  # a part of the user's own may name what is not there at run time
        return {}


def fitting(where: str, hint: Any, old: Any, new: Any) -> Any:
    """`new` as a value for the option `where`, whose type is `hint` and that held `old`.

    Whole numbers stand for floats, lists for tuples, a schedule for any number. Raises UserError.
    """
    check_value(new, where)
    if isinstance(new, float) and new != new:
        raise UserError(f"{where} must be a number, it is {new}")
    if isinstance(new, list):
        new = tuple(new)
    kinds = _kinds(hint, old)
    if str in kinds and new is None and type(None) not in kinds:
        new = "none"  # the notation reads this word as nothing
    for kind in kinds:
        if _is(kind, new):
            return _as(kind, new)
    named = [kind for kind in kinds if kind is not type(None)]
    if not named or any((typing.get_origin(kind) or kind) not in WORDS for kind in named):
        return new  # a type that is not ours to judge
    raise UserError(f"{where} takes {' or '.join(map(_words, named))}, got {new!r}")


def _kinds(hint: Any, old: Any) -> tuple[Any, ...]:
    if hint is None or isinstance(hint, str):
        hint = type(old)
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return tuple(kind for kind in typing.get_args(hint) if kind is not Schedule)
    return (hint,)


def _is(kind: Any, new: Any) -> bool:
    """Whether the value is one of this type, or stands for one."""
    if kind in (int, float):
        if isinstance(new, Schedule):
            return True
        if isinstance(new, bool) or not isinstance(new, int | float):
            return False
        return kind is float or isinstance(new, int) or (new.is_integer() and abs(new) < 2**63)
    if typing.get_origin(kind) is not tuple:
        return isinstance(kind, type) and isinstance(new, kind)
    inside = _inside(kind, len(new)) if isinstance(new, tuple) else None
    return inside is not None and len(inside) == len(new) and all(map(_is, inside, new))


def _as(kind: Any, new: Any) -> Any:
    if kind in (int, float) and not isinstance(new, Schedule):
        return kind(new)
    if typing.get_origin(kind) is tuple:
        return tuple(map(_as, _inside(kind, len(new)), new))
    return new


def _inside(kind: Any, length: int) -> tuple[Any, ...]:
    """The types of a tuple's items."""
    inside = typing.get_args(kind)
    return inside[:1] * length if len(inside) == 2 and inside[1] is ... else inside


def _words(kind: Any) -> str:
    """What the type holds, as in "takes a list of 2 numbers"."""
    inside = typing.get_args(kind)
    if not inside:
        return WORDS[kind]
    of = {str: "texts", int: "whole numbers"}.get(inside[0], "numbers")
    return f"a list of {of}" if inside[-1] is ... else f"a list of {len(inside)} {of}"
