"""`strop.sweep`: one method with many values of its options."""

from collections.abc import Iterable, Mapping
from typing import Any

from strop._shown_method import dotted
from strop.comparison.values import Spread, combinations, spread
from strop.door.compare import Comparison, Swept, compare
from strop.door.methods import label_of
from strop.door.options import HEADS, plain
from strop.errors import UserError


def sweep(method: Any, values: Mapping[str, Any], *, draws: int = 0, **options: Any) -> Comparison:
    """Train a method with every value of an option, or every combination of several.

    method: as `strop.train` takes it. values: an option's values in a list, or `"log(1e-5, 1e-3,
    5)"`, `"random(0.1, 0.4, 8)"` as `strop sweep` has them; by the option's name. draws: the seed
    of random ones. Every other argument is one of `strop.compare`, which says what is raised.
    """
    if not isinstance(values, Mapping) or not values:
        raise UserError(
            f"values is {values!r}: give a dict of what is swept, such as "
            '{"training_lr": [1e-4, 1e-3]}'
        )
    found = [_spread(dotted(name, HEADS), given, draws) for name, given in values.items()]
    rows = combinations(found)
    entries = tuple(
        (" ".join(f"{name}={value}" for name, value in row), (method, dict(row)), row)
        for row in rows
    )
    return compare(Swept(_called(method), entries), **options)


def _spread(name: str, given: Any, draws: int) -> Spread:
    """The values of an option. Raises UserError."""
    if isinstance(given, str):
        found = spread(f"{name}={given}", draws)
        if found is None:
            raise UserError(
                f"{name} has one value, {given!r}: give several in a list, `log(LOW,HIGH,COUNT)` "
                "or `random(LOW,HIGH,COUNT)`"
            )
        return found
    if not isinstance(given, Iterable) or not (texts := [str(plain(each)) for each in given]):
        raise UserError(f"{name} is {given!r}: give its values in a list")
    return Spread(name, tuple(dict.fromkeys(texts)), False)


def _called(method: Any) -> str:
    """The method's name in tables; one that has none is the method."""
    try:
        return label_of(method)
    except UserError:
        return "the method"
