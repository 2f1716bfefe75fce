"""Charts of runs in a notebook: those of the report, or of any number in metrics.jsonl.

They are one picture (SVG), which every viewer of notebooks shows."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

from strop.api.folders import path_of
from strop.method.charts import Curve, LineChart
from strop.report.charts import Chart, lines
from strop.report.page import unique_names
from strop.report.run_folder import Run as Recorded
from strop.report.run_folder import read_run
from strop.report.sections import sections
from strop.report.seeds import by_method, mean_of
from strop.support.errors import UserError, nearest
from strop.support.writing import writing

SHOWN = ("Learning", "Given answers", "Exploration", "Completions", "Stability")
MOST = 6  # charts
CURVES = ("lines", "lines+markers")


@dataclass(frozen=True)
class Plot:
    """Charts that a notebook shows at the end of a cell; `svg` is the picture, `save` writes it."""

    charts: tuple[Chart, ...]

    @property
    def svg(self) -> str:
        """The picture as text."""
        return picture(self.charts)

    def save(self, path: str | Path) -> Path:
        """Write the picture to a file `.svg`. Raises UserError."""
        place = path_of(path, "path")
        with writing(place.parent, place.name):
            place.write_text(self.svg, encoding="utf-8")
        return place

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return f"Plot({', '.join(chart.title for chart in self.charts)})"


def plot(folders: Sequence[Path], names: Sequence[str] = ()) -> Plot:
    """The first charts of the runs' report, or one for each named number. Raises UserError."""
    runs = by_method(unique_names([read_run(folder) for folder in folders], folders))
    return _drawn(runs, names, str(folders[0]))


def plot_labelled(folders: Mapping[str, Sequence[Path]], names: Sequence[str] = ()) -> Plot:
    """As `plot`, with one curve for each label: the mean of its runs, which differ by seed."""
    runs = [mean_of(list(map(read_run, each)), label) for label, each in folders.items()]
    return _drawn(runs, names, ", ".join(folders))


def _drawn(runs: Sequence[Recorded], names: Sequence[str], what: str) -> Plot:
    if names:
        found = [_named(runs, name) for name in names]
    else:
        inside = [charts for title, charts in sections(runs) if title in SHOWN]
        found = [chart for charts in inside for chart in charts if _has_lines(chart)][:MOST]
    if not found:
        raise UserError(f"{what} has no step to draw yet: take one first")
    return Plot(tuple(found))


def _named(runs: Sequence[Recorded], name: str) -> Chart:
    if not isinstance(name, str):
        raise UserError(f"{name!r:.100} is no name of a number: give it as text, such as 'reward'")
    curve = Curve(name, name, f"{name}/low", f"{name}/high")
    chart = lines(runs, LineChart(name, "", (curve,), smooth=True))
    if chart is None:
        known = {key for run in runs for key in run.numbers}
        raise UserError(f"no number {name!r} was recorded{nearest(name, known)}")
    return chart


def _has_lines(chart: Chart) -> bool:
    return all(trace.get("mode") in CURVES and "stackgroup" not in trace for trace in chart.data)


WIDTH, HEIGHT = 460, 270  # of a chart, pixels
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 34, 44  # its margins; the legend is at the bottom
INK, SOFT, GRID = "#22262b", "#626a75", "#e3e5e8"
DASHED = {"dash": "6 4", "dot": "2 3", "dashdot": "6 3 2 3", "longdash": "10 4"}
FONT = "font-family='system-ui, sans-serif'"


def picture(charts: Sequence[Chart], across: int = 2) -> str:
    """The charts in a grid with `across` columns."""
    across = max(1, min(across, len(charts)))
    width, height = across * WIDTH, math.ceil(len(charts) / across) * HEIGHT
    drawn = "".join(
        f'<g transform="translate({n % across * WIDTH} {n // across * HEIGHT})">{_chart(each)}</g>'
        for n, each in enumerate(charts)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}"><rect width="100%" height="100%" fill="white"/>'
        f"{drawn}</svg>"
    )


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """At most `most` round numbers from `low` to `high`."""
    step = 10.0 ** math.floor(math.log10(max(high - low, 1e-12) / most))
    while (high - low) / step > most - 1:
        step *= 2.5 if str(f"{step:e}")[0] == "2" else 2
    first = math.ceil(low / step - 1e-9)
    return [n * step for n in range(first, math.floor(high / step + 1e-9) + 1)]


def _chart(chart: Chart) -> str:
    x_range, y_range = _ranges(chart)
    percent = "%" in chart.layout.get("yaxis", {}).get("tickformat", "")

    def at(x: float, y: float) -> tuple[float, float]:
        across = (x - x_range[0]) / (x_range[1] - x_range[0])
        up = (y - y_range[0]) / (y_range[1] - y_range[0])
        return (
            round(LEFT + across * (WIDTH - LEFT - RIGHT), 1),
            round(HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM), 1),
        )

    pieces = [_text(LEFT, 20, chart.title, INK, 14, "start", "bold")]
    for y in ticks(*y_range):
        _, down = at(x_range[0], y)
        pieces.append(f'<path d="M{LEFT} {down}H{WIDTH - RIGHT}" stroke="{GRID}"/>')
        shown = f"{100 * y:.4g}%" if percent else f"{y:.4g}"
        pieces.append(_text(LEFT - 6, down + 4, shown, SOFT, 11, "end"))
    pieces += [
        _text(at(x, 0)[0], HEIGHT - BOTTOM + 16, f"{x:.0f}", SOFT, 11, "middle")
        for x in ticks(*x_range)
        if x == int(x)
    ]
    below: list[tuple[float, float]] = []
    for trace in chart.data:
        points = [at(*pair) for pair in zip(trace["x"], trace["y"], strict=True)]
        if "fill" in trace and below:
            ring = " ".join(f"{x},{y}" for x, y in [*below, *reversed(points)])
            pieces.append(f'<polygon points="{ring}" fill="{trace["fillcolor"]}"/>')
        pieces.append(_line(trace, points))
        below = points
    return "".join(pieces) + _legend(chart)


def _ranges(chart: Chart) -> tuple[tuple[float, float], tuple[float, float]]:
    """The ranges of the x and the y axis."""
    xs = [x for trace in chart.data for x in trace["x"]]
    ys = [y for trace in chart.data for y in trace["y"]]
    low, high = min(ys), max(ys)
    if chart.layout.get("yaxis", {}).get("rangemode") == "tozero":
        low = min(low, 0.0)
    room = 0.05 * (high - low) or 0.5 * abs(high) or 1.0
    low = low if low == 0 else low - room
    return (min(xs), max(max(xs), min(xs) + 1)), (low, high + room)


def _line(trace: dict[str, Any], points: Sequence[tuple[float, float]]) -> str:
    style = trace["line"]
    dash = DASHED.get(style.get("dash", ""), "")
    dashed = f' stroke-dasharray="{dash}"' if dash else ""
    drawn = (
        f'<polyline points="{" ".join(f"{x},{y}" for x, y in points)}" fill="none" '
        f'stroke="{style["color"]}" stroke-width="{style["width"]}"{dashed}/>'
    )
    if "markers" in trace.get("mode", ""):
        drawn += "".join(
            f'<circle cx="{x}" cy="{y}" r="2.5" fill="{style["color"]}"/>' for x, y in points
        )
    return drawn


def _legend(chart: Chart) -> str:
    """The names of the lines below the axis, where there are several."""
    if not chart.layout.get("showlegend"):
        return ""
    found, left = [], float(LEFT)
    for trace in chart.data:
        name = trace.get("name", "")
        if trace.get("showlegend", True) and name and left < WIDTH - 60:
            colour = trace["line"]["color"]
            found.append(f'<path d="M{left} {HEIGHT - 12}h14" stroke="{colour}" stroke-width="2"/>')
            found.append(_text(left + 18, HEIGHT - 8, name, SOFT, 11, "start"))
            left += 32 + 6.2 * len(name)
    return "".join(found)


def _text(
    x: float, y: float, text: str, colour: str, size: int, anchor: str, weight: str = "normal"
) -> str:
    return (
        f'<text x="{x}" y="{y}" fill="{colour}" font-size="{size}" text-anchor="{anchor}" '
        f'font-weight="{weight}" {FONT}>{escape(text)}</text>'
    )
