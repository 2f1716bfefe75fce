"""Another legal value for every option, to check that the option has an effect."""

import re
from collections.abc import Callable
from typing import Any

from strop.method.schedule import Constant, Schedule
from strop.support.errors import UserError

UNLIKE = "qqqq"


def candidates(value: Any) -> list[Any]:
    """Other values of the same kind, the likeliest to be legal first."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, Schedule):
        return [Constant(0.55)]
    if isinstance(value, int):
        return [value + 1]
    if isinstance(value, float):
        return [value / 2 if value else 0.01, value + 1.5, (value + 1) / 2]  # the last: a share
    if isinstance(value, str):
        return [value + "x"]  # as a free text; `texts` finds those of a closed set
    if isinstance(value, tuple):
        return [tuple(candidates(item)[0] for item in value) or (1, 2)]  # numbers of any kind
    raise TypeError(f"no other value for {value!r}")


def texts(make: Callable[[str], object], value: str) -> list[str]:
    """Other texts of an option: those that `make` names as it refuses one that is like none, and
    the value with a letter more, where a text has to have a form.
    """
    try:
        make(UNLIKE)
    except UserError as error:
        named = re.findall(r"[\w-]+", str(error))
        others = [word for word in dict.fromkeys(named) if word not in (value, UNLIKE)]
        return [*others, *candidates(value)]
    return [UNLIKE]


def changed_values(options: dict[str, Any]) -> dict[str, Any]:
    """One other value for every number, switch and schedule."""
    return {k: candidates(v)[0] for k, v in options.items() if not isinstance(v, str)}
