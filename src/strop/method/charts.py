"""What a part brings for those who look at a run: charts of the report, lines of the live panel.

A part states them beside its fields, for metrics that it logs with `Result(value, metrics={...})`:

    charts: ClassVar[tuple[LineChart, ...]] = (
        LineChart("Budget", "Mean over prompts, tokens.", (Curve("budget/mean", "budget"),)),
    )
    panel: ClassVar[tuple[str, ...]] = ("budget/mean",)

A run writes the charts of its parts into its folder as it begins. So whatever shows the folder
later reads them there, and imports no part.
"""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from strop.method.part import Use
from strop.support.errors import UserError

NAME = "charts.json"  # in a run's folder
Stated = TypeVar("Stated")


@dataclass(frozen=True)
class Curve:
    """One metric and, where they are recorded, the metrics that are the limits around it.

    label: what the legend calls it; empty: the metric's name.
    """

    key: str
    label: str = ""
    low: str = ""
    high: str = ""


@dataclass(frozen=True)
class LineChart:
    """Metrics over steps. A metric that a run has not recorded has no curve, and a chart without
    curves is left out; charts of one section and title are one chart with the curves of all.

    section: a new one stands behind those of the report. smooth: a long curve also gets its moving
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
    """The charts that parts bring, each once. Raises UserError where one states other things."""
    return _stated(placed, "charts", LineChart)


def panel_of(placed: Placed) -> tuple[str, ...]:
    """The metrics that parts bring for the live panel, each once. Raises UserError as well."""
    return _stated(placed, "panel", str)


def _stated(placed: Placed, name: str, kind: type[Stated]) -> tuple[Stated, ...]:
    return tuple(dict.fromkeys(each for _, use in placed for each in _of(use, name, kind)))


def _of(use: Use, name: str, kind: type[Stated]) -> tuple[Stated, ...]:
    found = getattr(use.part, name, ())
    if not isinstance(found, tuple) or not all(isinstance(each, kind) for each in found):
        raise UserError(f"part {use.label}: {name} must be a tuple of {kind.__name__}: {found!r}")
    return found


def as_objects(charts: Iterable[LineChart]) -> list[dict[str, Any]]:
    """The charts as JSON has them."""
    return [dataclasses.asdict(chart) for chart in charts]


def from_objects(found: object) -> tuple[LineChart, ...]:
    """What `as_objects` gave. Raises ValueError for anything else."""
    if not isinstance(found, list):
        raise ValueError("it is no list of charts")
    return tuple(_made(LineChart, each) for each in found)


def _made(kind: Any, given: Any) -> Any:
    """A record whose fields have the types that it declares."""
    if not isinstance(given, dict):
        raise ValueError(f"a {kind.__name__} is no object")
    if "curves" in given:
        if not isinstance(given["curves"], list):
            raise ValueError("curves are no list")
        given = {**given, "curves": tuple(_made(Curve, each) for each in given["curves"])}
    wanted = {"curves": tuple, "percent": bool, "smooth": bool, "zero": bool}
    for name, value in given.items():
        if not isinstance(value, wanted.get(name, str)):
            raise ValueError(f"{name} does not fit")
    try:
        return kind(**given)
    except TypeError as error:
        raise ValueError(str(error)) from error
