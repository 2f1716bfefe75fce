"""Builds figures as plain plotly dictionaries: lines of several runs, areas and bars of one.

Long curves are thinned, so that a page with 100,000 steps is small and opens at once."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strop.method.charts import Curve, LineChart
from strop.report.run_folder import Band, Run, Series

POINTS = 400  # maximum points of a curve: about as many as a chart has pixels


def thinned(series: Series, points: int = POINTS) -> Series:
    """At most `points` of the curve: the smallest and the largest value of each stretch, at their
    own steps and in their order, so that no peak is lost. A shorter curve is returned unchanged.
    """
    steps, values = series
    if len(steps) <= points:
        return series
    edges = _stretches(len(steps), max(1, points // 2))
    stretches = [(a, values[a:b]) for a, b in pairwise(edges)]
    kept = [a + k for a, part in stretches for k in (part.argmin(), part.argmax())]
    chosen = np.unique(np.array(kept))
    return steps[chosen], values[chosen]


def averaged(series: Series, points: int = POINTS) -> Series:
    """At most `points` values: the mean of each stretch, at the step in its middle."""
    steps, values = series
    if len(steps) <= points:
        return series
    edges = _stretches(len(steps), points)
    sums = np.add.reduceat(values, edges[:-1])
    return steps[(edges[:-1] + edges[1:] - 1) // 2], sums / np.diff(edges)


def thinned_band(
    steps: NDArray[np.int64], low: NDArray[np.float64], high: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """A shaded area with at most POINTS edges: the lowest and highest limit of each stretch."""
    if len(steps) <= POINTS:
        return steps, low, high
    edges = _stretches(len(steps), POINTS)
    middle = steps[(edges[:-1] + edges[1:] - 1) // 2]
    return middle, np.minimum.reduceat(low, edges[:-1]), np.maximum.reduceat(high, edges[:-1])


def _stretches(length: int, stretches: int) -> NDArray[np.int64]:
    """Start indices of stretches of nearly equal length, and the end index."""
    return np.linspace(0, length, stretches + 1).astype(np.int64)


# Readable on light and dark pages, and distinguishable with common colour-vision deficiencies.
COLOURS = ("#3478b8", "#d07a1c", "#2a9183", "#b4557e", "#7a68c2", "#8a7a2a", "#4f9fcf", "#9a6a4c")
GREY = "#8a929e"
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
BARS = 24
FEW = 12  # distinct values that each get a bar of their own
FEW_SEEDS = 5  # runs of a method; fewer are drawn one by one: an interval would hide the curves
SMOOTH_FROM = 30  # a noisy curve with at least so many values also gets its moving mean


@dataclass(frozen=True)
class Chart:
    """A titled figure; the page supplies the colours of text and grid.

    height: in pixels; 0: the common height of charts.
    """

    title: str
    caption: str
    data: tuple[dict[str, Any], ...]
    layout: dict[str, Any]
    height: int = 0


def lines(runs: Sequence[Run], chart: LineChart) -> Chart | None:
    """Curves over steps; with several runs the colour shows the run and the dash the curve.

    None when no run has any of the numbers.
    """
    smooth = chart.smooth
    data: list[dict[str, Any]] = []
    used = [curve for curve in chart.curves if any(len(run.series(curve.key)[0]) for run in runs)]
    for run_index, run in enumerate(runs):
        for curve_index, curve in enumerate(used):
            colour = COLOURS[(run_index if len(runs) > 1 else curve_index) % len(COLOURS)]
            name = _name(run, curve, several_runs=len(runs) > 1, several_curves=len(used) > 1)
            data += _recorded_band(run, curve, colour)
            data += _over_seeds(run, curve, colour, smooth)
            data += _line(run, curve, name, colour, DASHES[curve_index % 6], smooth, len(runs) > 1)
    if not data:
        return None
    all_positive = all(y is None or y >= 0 for trace in data for y in trace["y"])
    axis: dict[str, Any] = {"rangemode": "tozero" if chart.zero and all_positive else "normal"}
    if chart.percent:
        axis |= {"tickformat": ".2~%", "minallowed": 0, "maxallowed": 1}
    visible = sum(trace.get("showlegend", True) for trace in data)
    layout = {"yaxis": axis, "showlegend": visible > 1}
    return Chart(chart.title, chart.caption, tuple(data), layout)


def stack(
    run: Run, title: str, caption: str, labels: Mapping[str, tuple[str, str]], *, percent: bool
) -> Chart | None:
    """Stacked areas; `labels` is key -> (label, colour); a missing value is 0."""
    found = {key: series for key in labels if len((series := run.series(key))[0])}
    if not found:
        return None
    steps = np.unique(np.concatenate([own for own, _ in found.values()]))
    shape = "linear" if percent else "hvh"  # seconds belong to their step, not to a slope
    data = []
    for key, (own, values) in found.items():
        whole = np.zeros(len(steps))
        whole[np.searchsorted(steps, own)] = values
        x, y = averaged((steps, whole))
        label, colour = labels[key]
        trace = {
            "x": x.tolist(),
            "y": short(y),
            "name": label,
            "mode": "lines" if len(x) > 1 else "lines+markers",
            "line": {"width": 0.5, "color": colour, "shape": shape},
        }
        data.append({**trace, "fillcolor": see_through(colour, 0.75), "stackgroup": "all"})
    axis: dict[str, Any] = {"rangemode": "tozero"}
    if percent:
        axis |= {"tickformat": ".2~%", "range": [0, 1]}
    return Chart(title, caption, tuple(data), {"yaxis": axis, "showlegend": True})


def histogram(run: Run, title: str, of: str, axis: str) -> Chart | None:
    """Share of rollouts over `of` (rewards or lengths), of the first and the last recorded step;
    None when nothing is recorded.
    """
    found = [recorded for recorded in run.rollouts if len(getattr(recorded, of))]
    if not found:
        return None
    pair = found[:1] + found[1:][-1:]
    columns = [getattr(recorded, of) for recorded in pair]
    edges = _edges(np.concatenate(columns))
    whole = bool(np.diff(edges).min() >= 1)
    data = []
    for recorded, values in zip(pair, columns, strict=True):
        colour = see_through(COLOURS[0], 0.75) if recorded is pair[-1] else see_through(GREY, 0.6)
        counts, _ = np.histogram(values, edges)
        data.append({
            "type": "bar",
            "x": short((edges[:-1] + edges[1:]) / 2),
            "y": short(counts / len(values)),
            "width": short(np.diff(edges) * 0.96),
            "name": f"step {recorded.step:,}",
            "marker": {"color": colour},
        })  # fmt: skip
    counted = ", ".join(
        f"{len(v):,} of step {r.step:,}" for r, v in zip(pair, columns, strict=True)
    )
    layout: dict[str, Any] = {
        "barmode": "overlay",
        "xaxis": {"title": {"text": axis}, "dtick": 1 if whole and len(edges) < FEW else None},
        "yaxis": {"tickformat": ".2~%", "rangemode": "tozero"},
        "showlegend": len(pair) > 1,
    }
    return Chart(title, f"Share of rollouts: {counted}.", tuple(data), layout)


def _edges(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Edges of bars: one bar around each of a few values, else evenly spaced ones; of whole
    numbers each bar covers equally many.
    """
    distinct = np.unique(values.round(9))
    least, most = values.min(), values.max()
    if len(distinct) > FEW and (values == values.round()).all():
        width = np.ceil((most - least + 1) / BARS)
        return np.arange(least - 0.5, most + width, width)
    if len(distinct) > FEW:
        return np.linspace(least, most, BARS + 1)
    half = np.diff(distinct).min() / 2 if len(distinct) > 1 else 0.5
    half = max(half, 1e-12 * np.abs(distinct).max())  # 1e20 plus 0.5 is 1e20
    return np.unique(np.concatenate([distinct - half, distinct + half]).round(9))


def see_through(colour: str, alpha: float) -> str:
    """`#rrggbb` with an opacity."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red}, {green}, {blue}, {alpha:g})"


def short(values: Iterable[float]) -> list[float]:
    """Rounds to five significant digits: more than a chart shows, and half of the page's bytes."""
    return [float(f"{value:.5g}") for value in values]


def moving_mean(values: NDArray[np.float64], window: int) -> NDArray[np.float64]:
    """Mean of the `window` (an odd number) values around each; at the ends of those that exist."""
    half = window // 2
    sums = np.concatenate(([0.0], np.cumsum(values)))
    at = np.arange(len(values))
    start, stop = np.maximum(0, at - half), np.minimum(len(values), at + half + 1)
    return (sums[stop] - sums[start]) / (stop - start)


def _name(run: Run, curve: Curve, *, several_runs: bool, several_curves: bool) -> str:
    label = curve.label or curve.key
    if several_runs and several_curves:
        return f"{run.name} · {label}"
    return run.name if several_runs else label


def _line(
    run: Run, curve: Curve, name: str, colour: str, dash: str, smooth: bool, several_runs: bool
) -> list[dict[str, Any]]:
    """The curve; of many values their moving mean, drawn over the values of a single run."""
    series = run.series(curve.key)
    steps, values = series
    if not len(steps):
        return []
    x, y = thinned(series)
    trace: dict[str, Any] = {
        "x": x.tolist(),
        "y": short(y),
        "name": name,
        "mode": "lines+markers" if len(steps) <= SMOOTH_FROM else "lines",
        "marker": {"size": 5},
        "line": {"color": colour, "width": 2, "dash": dash if several_runs else "solid"},
    }
    if not smooth or len(steps) <= SMOOTH_FROM:
        return [trace]
    window = _window(values)
    faint = trace | {
        "line": {"color": see_through(colour, 0.35), "width": 1},
        "showlegend": False,
        "hoverinfo": "skip",
    }
    x, y = averaged((steps, moving_mean(values, window)))
    mean = {"x": x.tolist(), "y": short(y), "name": f"{name} (mean of {window})"}
    return [trace | mean] if run.members else [faint, trace | mean]


def _recorded_band(run: Run, curve: Curve, colour: str) -> list[dict[str, Any]]:
    """The area between the two limits of a curve; empty when they are not recorded."""
    low, high = run.series(curve.low), run.series(curve.high)
    common, at_low, at_high = np.intersect1d(
        low[0], high[0], assume_unique=True, return_indices=True
    )
    return _band((common, low[1][at_low], high[1][at_high]), colour) if len(common) else []


def _over_seeds(run: Run, curve: Curve, colour: str, smooth: bool) -> list[dict[str, Any]]:
    """The interval around a mean over runs, or each of a few runs as a thin line."""
    if curve.key not in run.spread:
        return []
    if len(run.members) < FEW_SEEDS:
        several = (averaged(member.series(curve.key)) for member in run.members)
        return [thin(x, y, colour) for x, y in several if len(x)]
    steps, low, high = run.spread[curve.key]
    if smooth and len(steps) > SMOOTH_FROM:
        low, high = (moving_mean(limit, _window(limit)) for limit in (low, high))
    return _band((steps, low, high), colour)


def thin(x: Iterable[float], y: Iterable[float], colour: str) -> dict[str, Any]:
    """The thin line of one run of several, drawn behind their mean."""
    return {
        "x": np.asarray(x).tolist(),
        "y": short(y),
        "mode": "lines",
        "line": {"width": 1, "color": see_through(colour, 0.4)},
        "showlegend": False,
        "hoverinfo": "skip",
    }


def _band(band: Band, colour: str) -> list[dict[str, Any]]:
    """A shaded area."""
    steps, lowest, highest = thinned_band(*band)
    edge = {
        "x": steps.tolist(),
        "mode": "lines",
        "line": {"width": 0.5, "color": see_through(colour, 0.4)},
        "showlegend": False,
        "hoverinfo": "skip",
    }
    fill = {"fill": "tonexty", "fillcolor": see_through(colour, 0.13)}
    return [edge | {"y": short(lowest)}, edge | {"y": short(highest)} | fill]


def _window(values: NDArray[np.float64]) -> int:
    """The number of values that a moving mean covers, an odd number."""
    return 2 * (len(values) // 40) + 3
