"""A test that checks a statement for many cases, such as every part, and names those that fail."""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

import pytest

ONLY: set[str] = set()  # names of the cases to run, from `pytest --case`; empty: all
KNOWN: set[str] = set()  # all names of cases


def every(
    parameter: str, cases: Iterable[Any], name: Callable[[Any], str] | None = None
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Run a test for all cases and then say of each one for which it failed what was wrong.

    parameter: where the test takes a case; name: of a case, by default its `name`, or it as text.
    """
    named = {(name or _name_of)(case): case for case in cases}
    KNOWN.update(named)

    def decorated(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def of_all(**fixtures: Any) -> None:
            failed: dict[str, BaseException] = {}
            for label, case in named.items():
                if ONLY and label not in ONLY:
                    continue
                try:
                    test(**fixtures, **{parameter: case})
                except (Exception, pytest.fail.Exception) as error:
                    error.add_note(f"This is of {label}.")
                    failed[label] = error
            if failed:
                raise BaseExceptionGroup(", ".join(failed), [*failed.values()])

        own = inspect.signature(test)
        rest = [given for given in own.parameters.values() if given.name != parameter]
        vars(of_all).update(__signature__=own.replace(parameters=rest), cases=frozenset(named))
        return of_all

    return decorated


def is_of_another(item: pytest.Item) -> bool:
    """Whether an item of `pytest.mark.parametrize` is of a case that was not asked for."""
    given = getattr(getattr(item, "callspec", None), "params", {}).values()
    named = {each for each in given if isinstance(each, str)} & KNOWN
    return bool(ONLY and named) and not named & ONLY


def _name_of(case: Any) -> str:
    return str(getattr(case, "name", case))
