"""Charts of runs in a notebook: those of the report, or any number of metrics.jsonl."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from strop.api.svg import picture
from strop.method.charts import Curve, LineChart
from strop.report.charts import Chart, lines
from strop.report.page import unique_names
from strop.report.run_folder import Run as Recorded
from strop.report.run_folder import read_run
from strop.report.sections import sections
from strop.report.seeds import by_method
from strop.support.errors import UserError, nearest
from strop.support.writing import writing

SHOWN = ("Learning", "Given answers", "Exploration", "Completions", "Stability")
CURVES = ("lines", "lines+markers")


@dataclass(frozen=True)
class Plot:
    """Charts, shown where a cell ends with them; `svg` is the picture, `save` writes it."""

    charts: tuple[Chart, ...]

    @property
    def svg(self) -> str:
        """The picture as text."""
        return picture(self.charts)

    def save(self, path: str | Path) -> Path:
        """Write the picture to a file `.svg`. Raises UserError."""
        with writing(Path(path).parent, Path(path).name):
            Path(path).write_text(self.svg, encoding="utf-8")
        return Path(path)

    def _repr_svg_(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return f"Plot({', '.join(chart.title for chart in self.charts)})"


def plot(folders: Sequence[Path], names: Sequence[str] = (), most: int = 6) -> Plot:
    """The first charts of the runs' report, or one of each named number. Raises UserError."""
    runs = by_method(unique_names([read_run(folder) for folder in folders], folders))
    if names:
        found = [_named(runs, name) for name in names]
    else:
        inside = [charts for title, charts in sections(runs) if title in SHOWN]
        found = [chart for charts in inside for chart in charts if _has_lines(chart)][:most]
    if not found:
        raise UserError(f"{folders[0]} has no step to draw yet: take one first")
    return Plot(tuple(found))


def _named(runs: Sequence[Recorded], name: str) -> Chart:
    curve = Curve(name, name, f"{name}/low", f"{name}/high")
    chart = lines(runs, LineChart(name, "", (curve,), smooth=True))
    if chart is None:
        known = {key for run in runs for key in run.numbers}
        raise UserError(f"no number {name!r} was recorded{nearest(name, known)}")
    return chart


def _has_lines(chart: Chart) -> bool:
    return all(trace.get("mode") in CURVES and "stackgroup" not in trace for trace in chart.data)
