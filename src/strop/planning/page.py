"""Writes plan.html: throughput and idle time over the number of workers, and who idles when."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from strop.planning.parallel import GIB
from strop.planning.simulate import Outcome
from strop.planning.text import SHARING, Found, headings, proposals, rows, sharing_rows
from strop.report.charts import COLOURS, Chart, short
from strop.report.html import charts_grid, document, section, table
from strop.support.writing import write_whole, writing

DRAWN = 8  # workers of each kind in a timeline
SHOWN_STEPS = 4  # steps in a timeline
FEW = 8  # the timeline is drawn for this number of workers, or the nearest planned one
BAR = 9  # pixels
GENERATING, GRADING, TRAINING = COLOURS[0], COLOURS[2], COLOURS[1]


def write_page(names: Sequence[str], lines: Sequence[str], found: Found, out: Path) -> None:
    """Write the page. names: of the planned run; lines: facts about it. Raises UserError."""
    page = render(names, lines, found)
    with writing(out.parent, f"the plan {out.name}", len(page)):
        out.parent.mkdir(parents=True, exist_ok=True)
        write_whole(out, page)


def render(names: Sequence[str], lines: Sequence[str], found: Found) -> str:
    """The page as text."""
    intro = "".join(f"<p>{escape(line)}</p>" for line in lines)
    number = min(found, key=lambda n: (abs(n - FEW), n))
    best = "".join(f"<li>{escape(line)}</li>" for line in proposals(found))
    over = [_over(found, "Throughput"), _over(found, "Idle")]
    shared = sharing_rows(found)
    timelines = [timeline(outcome) for outcome in found[number]]
    body = (
        f"<header>\n<h1>Plan of {escape(', '.join(names))}</h1>\n{intro}</header>\n<main>\n"
        + section("The fastest layout", f"<ul>{best}</ul>")
        + section("Workers", charts_grid(over, "workers"))
        + section(f"Who idles when, of {number}", charts_grid(timelines, "timeline"))
        + section("Every layout", table("numbers", headings(found), rows(found)))
        + section("How GPUs share the model", table("numbers", SHARING, shared) if shared else "")
        + section("Memory of a GPU, GiB", _memory(found))
        + "</main>\n"
    )
    return document(f"strop plan: {', '.join(names)}", body)


def _memory(found: Found) -> str:
    """A table of what uses a GPU's memory, for each layout whose GPUs share a model."""
    cells = [
        [f"{number:,} {outcome.layout.name}, {stage}",
         ", ".join(f"{name} {size / GIB:.1f}" for name, size in memory.items()),
         f"{sum(memory.values()) / GIB:.1f}"]
        for number, outcomes in found.items() for outcome in outcomes
        if (sharing := outcome.sharing) is not None
        for stage, memory in (("generating", sharing.engine.memory),
                              ("training", sharing.trainer.memory))
    ]  # fmt: skip
    return table("numbers", ("layout", "what", "all"), cells) if cells else ""


def _over(found: Found, title: str) -> Chart:
    """A chart of a number over the number of workers, one line for each layout."""
    idle = title == "Idle"
    by_name: dict[str, list[tuple[int, float]]] = {}
    for number, outcomes in found.items():
        for outcome in outcomes:
            value = outcome.shares["idle"] if idle else outcome.tokens_per_second
            by_name.setdefault(outcome.layout.name, []).append((number, value))
    data: list[dict[str, Any]] = []
    for index, (name, points) in enumerate(by_name.items()):
        line = {"color": COLOURS[index % len(COLOURS)], "width": 2}
        data.append({
            "x": [number for number, _ in points], "y": short(value for _, value in points),
            "name": name, "mode": "lines+markers", "line": line,
        })  # fmt: skip
    axis = {"title": {"text": headings(found)[0]}, "type": "log", "tickvals": list(found)}
    scale: dict[str, Any] = {"rangemode": "tozero", "tickformat": ".0%"} if idle else {
        "type": "log"
    }  # fmt: skip
    caption = (
        "Share of all workers' time."
        if idle
        else "Trained tokens a second, on a logarithmic scale."
    )
    return Chart(title, caption, tuple(data), {"xaxis": axis, "yaxis": scale, "showlegend": True})


def timeline(outcome: Outcome) -> Chart:
    """A timeline of some workers over a few steps; a gap is idle time."""
    layout, (first, _) = outcome.layout, outcome.window
    low, high = outcome.trained[first], outcome.trained[first + SHOWN_STEPS]
    traces: dict[str, dict[str, Any]] = {
        name: {"x": [], "y": [], "name": name, "mode": "lines",
               "line": {"width": BAR, "color": colour}, "hoverinfo": "skip"}
        for name, colour in (
            ("generates", GENERATING), ("grades", GRADING), ("trains", TRAINING),
        )
    }  # fmt: skip

    def bar(name: str, worker: str, begin: float, end: float) -> None:
        begin, end = max(float(begin), low), min(float(end), high)
        if end > begin:
            traces[name]["x"] += [*short((begin - low, end - low)), None]
            traces[name]["y"] += [worker, worker, None]

    engines = _some(layout.generate)
    kind = "worker" if layout.shared else "engine"
    trainers = engines if layout.shared else _some(layout.train)
    for step in range(len(outcome.trained)):
        for each in engines:
            name = f"{kind} {each + 1}"
            bar("generates", name, outcome.started[step], outcome.drawn[step, each])
            bar("grades", name, outcome.ended[step], outcome.graded[step])
        for each in trainers:
            name = f"{kind if layout.shared else 'trainer'} {each + 1}"
            bar("trains", name, outcome.trains[step], outcome.trained[step])
    names = dict.fromkeys(
        [f"{kind} {each + 1}" for each in engines]
        + [f"{kind if layout.shared else 'trainer'} {each + 1}" for each in trainers]
    )
    order = list(reversed(names))
    drawn = {
        "xaxis": {"title": {"text": "seconds"}, "range": [0, float(high - low)], "dtick": None},
        "yaxis": {"categoryorder": "array", "categoryarray": order, "type": "category"},
        "showlegend": True,
    }
    who = "" if layout.shared else f"{layout.generate:,} generate, {layout.train:,} train; "
    caption = f"{who}{outcome.shares['idle']:.0%} idle over {SHOWN_STEPS} steps and those after."
    height = max(230, 90 + 22 * len(names))
    return Chart(layout.name, caption, tuple(t for t in traces.values() if t["x"]), drawn, height)


def _some(count: int) -> list[int]:
    """The indices of some workers, spread evenly over all."""
    return sorted(set(np.linspace(0, count - 1, min(count, DRAWN)).round().astype(int).tolist()))
