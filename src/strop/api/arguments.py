"""Arguments of a Python call, checked by the types that its signature states."""

import errno
import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import numpy as np

from strop.support.errors import BITS, UserError

F = TypeVar("F", bound=Callable[..., Any])
WHAT: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    str: "text",
    Sequence[int]: "whole numbers in a list",
    Sequence[float]: "numbers in a list",
}


def checked(call: F) -> F:
    """Wraps a call so that it raises UserError for an argument of another type than stated.

    Numbers, text and lists of numbers are checked; a single number counts as a list of one, and
    numpy's numbers as Python's. All other arguments are left to the call, and so are paths, except
    names that no file can have.
    """
    signature = inspect.signature(call)
    stated = {name: parameter.annotation for name, parameter in signature.parameters.items()}

    @functools.wraps(call)
    def inner(*given: Any, **named: Any) -> Any:
        arguments = signature.bind(*given, **named)
        for name, value in arguments.arguments.items():
            arguments.arguments[name] = _checked(name, value, stated[name])
        try:
            return call(*arguments.args, **arguments.kwargs)
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
            raise UserError(f"a name is too long for a file: {error.filename!r:.100}") from error

    return cast(F, inner)


def check_seed(seed: int) -> None:
    """Raise UserError for a seed that random generators do not accept."""
    if not 0 <= seed < 2**63:
        raise UserError(f"the seed is {seed}: it must lie from 0 to 2**63 - 1, as that of a run")


def _checked(name: str, value: Any, kind: Any) -> Any:
    """The value. Raises UserError for a value of another kind."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and kind in WHAT):
        value = value.tolist()
    for number in (int, float):
        if kind == number | None:
            return None if value is None else _checked(name, value, number)
    if kind not in WHAT:
        return value
    if kind in (Sequence[int], Sequence[float]):
        one = int if kind == Sequence[int] else float
        several = (value,) if type(value) in (int, float) else value
        is_list = isinstance(several, Sequence) and not isinstance(several, str | bytes)
        if is_list and all(_is(each, one) for each in several):
            return tuple(several)
    elif _is(value, kind):
        return value
    raise UserError(f"{name} is {value!r:.100}: give {WHAT[kind]}")


def _is(value: Any, kind: type) -> bool:
    """Whether a value is of a kind; whole numbers are numbers, True is not."""
    if kind is float and type(value) is float:
        return True
    if kind in (int, float):
        return type(value) is int and value.bit_length() <= BITS
    return isinstance(value, kind)
