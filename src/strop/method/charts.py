"""Charts of the report and lines of the live panel that a part may state.

A part states them beside its fields, for metrics that it logs with `Result(value, metrics={...})`:

    charts: ClassVar[tuple[LineChart, ...]] = (
        LineChart("Budget", "Mean over prompts, tokens.", (Curve("budget/mean", "budget"),)),
    )
    panel: ClassVar[tuple[str, ...]] = ("budget/mean",)

A run writes the charts of its parts into its folder when it starts. So programs that show the
folder later read them there, and import no part.
"""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from strop.method.part import Use
from strop.support.errors import UserError, nearest

NAME = "charts.json"  # in a run's folder
Stated = TypeVar("Stated")


@dataclass(frozen=True)
class Curve:
    """One metric and, where they are recorded, the metrics that limit it from below and above.

    label: its name in the legend; empty: the metric's name.
    """

    key: str
    label: str = ""
    low: str = ""
    high: str = ""


@dataclass(frozen=True)
class LineChart:
    """Metrics over steps. A metric that a run has not recorded has no curve, and a chart without
    curves is left out. Charts with the same section and title become one chart with all curves.

    section: a new section comes after the report's own. smooth: a long curve also gets its moving
    mean. zero: the axis begins at 0 where all values allow it.
    """

    title: str
    caption: str
    curves: tuple[Curve, ...]
    section: str = "Method"
    percent: bool = False
    smooth: bool = False
    zero: bool = True


Placed = Iterable[tuple[str, Use]]  # as `method.uses()` gives it


def charts_of(placed: Placed) -> tuple[LineChart, ...]:
    """The charts that parts state, each once. Raises UserError where one is not a chart."""
    return _stated(placed, "charts", LineChart)


def panel_of(placed: Placed) -> tuple[str, ...]:
    """The metrics that parts state for the live panel, each once. Raises UserError as well."""
    return _stated(placed, "panel", str)


def _stated(placed: Placed, name: str, kind: type[Stated]) -> tuple[Stated, ...]:
    return tuple(dict.fromkeys(each for _, use in placed for each in _of(use, name, kind)))


def _of(use: Use, name: str, kind: type[Stated]) -> tuple[Stated, ...]:
    found = getattr(use.part, name, ())
    if not isinstance(found, tuple) or not all(isinstance(each, kind) for each in found):
        raise UserError(f"part {use.label}: {name} must be a tuple of {kind.__name__}: {found!r}")
    return found


def not_logged(placed: Placed, logged: Iterable[str]) -> list[str]:
    """A sentence for each metric that a part shows or follows and that no step has logged."""
    logged, shown = sorted(logged), dict[str, str]()  # from metric to part and verb
    for _, use in placed:
        for chart in _of(use, "charts", LineChart):
            for curve in chart.curves:
                shown |= dict.fromkeys((curve.key, curve.low, curve.high), f"{use.label} shows")
        shown |= dict.fromkeys(_of(use, "panel", str), f"{use.label} shows")
        shown |= dict.fromkeys(_of(use, "follows", str), f"{use.label} follows")
    return [
        f"{label} {name!r}, which no step has logged{nearest(name, logged)}"
        for name, label in shown.items() if name and name not in logged
    ]  # fmt: skip


def as_objects(charts: Iterable[LineChart]) -> list[dict[str, Any]]:
    """The charts as JSON objects."""
    return [dataclasses.asdict(chart) for chart in charts]


def from_objects(found: object) -> tuple[LineChart, ...]:
    """The charts from the result of `as_objects`. Raises ValueError for anything else."""
    if not isinstance(found, list):
        raise ValueError("it is not a list of charts")
    return tuple(_made(LineChart, each) for each in found)


def _made(kind: Any, given: Any) -> Any:
    """Make a record of this kind, after checking the types of its fields."""
    if not isinstance(given, dict):
        raise ValueError(f"a {kind.__name__} is not an object")
    if "curves" in given:
        if not isinstance(given["curves"], list):
            raise ValueError("curves are not a list")
        given = {**given, "curves": tuple(_made(Curve, each) for each in given["curves"])}
    wanted = {"curves": tuple, "percent": bool, "smooth": bool, "zero": bool}
    for name, value in given.items():
        if not isinstance(value, wanted.get(name, str)):
            raise ValueError(f"{name} has the wrong type")
    try:
        return kind(**given)
    except TypeError as error:
        raise ValueError(str(error)) from error
