"""compare.html: settings, table, curves and differences in one file that needs no network."""

import tomllib
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from strop.comparison import early, tuning
from strop.comparison.charts import AXES, curves, differences, laws, line_of, marked
from strop.comparison.names import number_of
from strop.comparison.plan import Plan
from strop.comparison.scores import Row
from strop.comparison.table import (
    difference,
    estimate,
    fewer_seeds,
    heading,
    judged,
    labels_of,
    note,
    one_run,
    resolution,
)
from strop.comparison.tuning import Tried
from strop.comparison.verdict import Compared
from strop.report.about import facts
from strop.report.charts import Chart, short
from strop.report.html import charts_grid, document, section, table
from strop.report.run_folder import Run
from strop.report.tables import differing
from strop.support.files import flat
from strop.support.writing import write_whole, writing

FIRST = ("pass@1", "late/entropy", "completions/mean_length")  # metrics whose differences are drawn
MOST_TITLE = 80  # characters of a heading
ABREAST = 5  # columns of methods in a table that fits a screen
MANY = 12  # settings that are shown unfolded

Runs = Mapping[str, Mapping[int, Run]]


def write_page(
    plan: Plan,
    rows: Sequence[Row],
    runs: Runs,
    notes: Sequence[str],
    out: Path,
    tried: Sequence[Tried] = (),
) -> None:
    """Write the page. Raises UserError."""
    with writing(out.parent, out.name):
        write_whole(out, render(plan, rows, runs, notes, tried))


def render(
    plan: Plan, rows: Sequence[Row], runs: Runs, notes: Sequence[str], tried: Sequence[Tried] = ()
) -> str:
    """The page as text."""
    body = [_header(plan, notes), "<main>\n"]
    if tried:
        body.append(
            _captioned_table(tuning.TITLE, tuning.MEANING, tuning.HEAD, tuning.lines_of(tried))
        )
    for step, compared in judged(plan, rows).items():
        names = _first(compared)
        drawn = [c for name in names if (c := differences(plan, compared, name))]
        answer = charts_grid(responses(plan, compared, names), f"response-{step}")
        shown = _table(plan, compared) + charts_grid(drawn, f"difference-{step}")
        body.append(section(heading(plan, step), answer + shown))
    if picks := early.lines_of(plan, rows):
        body.append(_captioned_table(early.TITLE, early.meaning(plan), early.HEAD, picks))
    legend = _legend(plan)
    for by, charts in curves(runs, [entry.label for entry in plan.entries]):
        content = legend + charts_grid(charts, f"curve-{by}")
        body.append(
            section("Over steps", content)
            if by == "steps"
            else _folded(f"Over {AXES[by]}", content)
        )
    if found := laws(runs):
        lines = [[label, str(seed), *(f"{x:.3f}" for x in law)] for label, seed, *law in found]
        text = (
            "<p>pass@1 = -a exp(H) + b, fitted to each run's validations; H is entropy in "
            "training, nats (arXiv 2505.22617).</p>"
        )
        head = ["method", "seed", "a", "b", "at H = 0", "R²"]
        body.append(section("Score over entropy", text + table("numbers", head, lines)))
    body.append(section("Settings that differ", _settings(plan)))
    body.append(section("Every run", _folded_table("Show the scores of each", _each(plan, rows))))
    body.append("</main>\n")
    return document(f"strop: {_title(plan)}", "".join(body))


def _captioned_table(
    title: str, meaning: str, head: Sequence[str], rows: Sequence[Sequence[str]]
) -> str:
    return section(title, f"<p>{escape(meaning)}</p>" + table("numbers", head, rows))


def _title(plan: Plan) -> str:
    if plan.swept:
        options = ", ".join(name for name, _ in plan.entries[0].values)
        return f"{plan.swept} over {options}"
    labels = [entry.label for entry in plan.entries]
    named = ", ".join(labels)
    return named if len(named) <= MOST_TITLE else f"{len(labels)} methods"


def _first(compared: Sequence[Compared]) -> list[str]:
    """The metrics that are drawn: pass@1, pass@ the largest k, entropy, length."""
    names = dict.fromkeys(c.metric for c in compared)
    largest = [name for name in names if name.startswith("pass@")][-1:]
    return [name for name in dict.fromkeys((*FIRST[:1], *largest, *FIRST[1:])) if name in names]


def _header(plan: Plan, notes: Sequence[str]) -> str:
    each = [dict(facts(entry.config)) for entry in plan.entries]
    shown = [(k, v) for k, v in each[0].items() if all(found.get(k) == v for found in each)]
    shown += [("Seeds", ", ".join(map(str, plan.seeds))), ("Steps", str(plan.steps))]
    if len(plan.entries) > 1:
        shown.append(("Baseline", plan.baseline))
    if plan.scoring.files:
        shown.append(("Scored on", ", ".join(plan.scoring.files)))
    items = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in shown)
    noted = "".join(f'<p class="note">{escape(line)}</p>' for line in notes)
    return (
        f'<header>\n<h1>{escape(_title(plan))}</h1>\n<dl class="about">{items}</dl>\n'
        f"<p>{escape(note(plan, 'below it'))}</p>{noted}</header>\n"
    )


def _table(plan: Plan, compared: Sequence[Compared]) -> str:
    """A row for each number and a column for each method, or a row for each of many methods; below
    it the definitions of the numbers.
    """
    if not compared:
        return ""
    numbers = {c.metric: number_of(c.metric, plan.scoring) for c in compared}
    cells = {(c.metric, c.label): _cell(c, len(plan.seeds)) for c in compared}
    labels = labels_of(plan)
    named = {label: escape(label).replace("(", "(<wbr>") for label in labels}
    titles = {
        m: f'<span title="{escape(n.meaning)}">{escape(n.name)}</span>' for m, n in numbers.items()
    }
    rows = [(named[label], [(metric, label) for metric in numbers]) for label in labels]
    columns = list(titles.values())
    if len(labels) <= ABREAST:
        rows = [(titles[metric], [(metric, label) for label in labels]) for metric in numbers]
        columns = list(named.values())
    head = "".join(f'<th scope="col">{name}</th>' for name in columns)
    body = "".join(
        f'<tr><th scope="row">{name}</th>'
        + "".join(f"<td>{cells.get(place, '–')}</td>" for place in places)
        + "</tr>"
        for name, places in rows
    )
    meanings = "".join(
        f"<dt>{escape(n.name)}</dt><dd>{escape(n.meaning)}</dd>" for n in numbers.values()
    )
    return (
        '<div class="wide" tabindex="0"><table class="compared">'
        f"<thead><tr><th></th>{head}</tr></thead>"
        f"<tbody>{body}</tbody></table></div>"
        + _folded_table("What the numbers are", f'<dl class="about">{meanings}</dl>')
    )


def _cell(compared: Compared, num_seeds: int) -> str:
    value, _, interval = estimate(compared.mean).partition(" ")
    interval += fewer_seeds(compared, num_seeds)
    text = f"<b>{value}</b>" + (f" <span>{interval}</span>" if interval else "")
    if compared.difference is not None:
        mark = f' <i class="{compared.verdict}">{compared.verdict}</i>' if compared.verdict else ""
        text += f"<br><span>{difference(compared)}</span>{mark}"
        text += f"<br><small>{resolution(compared).removeprefix('; ')}</small>"
    return text


def _legend(plan: Plan) -> str:
    """The line styles of all methods once, so that no chart needs room for long names."""
    marks = []
    for index, entry in enumerate(plan.entries):
        line = line_of(index)
        style = "solid" if line["dash"] == "solid" else "dashed"
        mark = f'<i style="border-top: 3px {style} {line["color"]}"></i>'
        marks.append(f"<li>{mark}{escape(entry.label)}</li>")
    return f'<ul class="legend">{"".join(marks)}</ul>\n'


def _settings(plan: Plan) -> str:
    """Settings that differ between methods."""
    lines = differing([dict(flat(tomllib.loads(e.config))) for e in plan.entries], str)
    if not lines:
        return ""
    shown = table("settings", ["Setting", *(e.label for e in plan.entries)], lines)
    return shown if len(lines) <= MANY else _folded_table(f"{len(lines)} settings", shown)


def _each(plan: Plan, rows: Sequence[Row]) -> str:
    """The numbers of every run and scored step."""
    keys = list(dict.fromkeys(key for row in rows for key in row.found))
    head = ["method", "seed", "step", *(number_of(key, plan.scoring).name for key in keys)]
    lines = (tuple(one_run(row, keys)) for row in rows)
    return table("numbers", head, dict.fromkeys(lines))  # the start once, not for each scored step


def _folded(title: str, content: str) -> str:
    return f"<details>\n<summary><h2>{escape(title)}</h2></summary>\n{content}\n</details>\n"


def _folded_table(title: str, content: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{content}</details>"


WIDE = 20.0  # ratio of largest to smallest value from which an axis is logarithmic


def responses(plan: Plan, compared: Sequence[Compared], metrics: Sequence[str]) -> list[Chart]:
    """A chart for each metric and option: the mean over seeds with its interval, over the values.

    Two combined options share one chart, with lines by the second. Empty for a comparison that is
    not a sweep.
    """
    if not plan.swept:
        return []
    names = [name for name, _ in plan.entries[0].values]
    given = {entry.label: dict(entry.values) for entry in plan.entries}
    sizes = [len({values[name] for values in given.values()}) for name in names]
    pairs = len(names) == 2 and sizes[0] * sizes[1] == len(given)
    found = []
    for metric in metrics:
        rows = [c for c in compared if c.metric == metric and c.label in given]
        title = number_of(metric, plan.scoring).name
        if pairs:
            found.append(_by_second(title, names, rows, given))
            continue
        for name in names:
            mode = "lines+markers" if len(names) == 1 else "markers"
            points = [(given[c.label][name], c) for c in rows]
            found.append(_chart(title, name, "", [_trace(points, 0, "", mode)]))
    return found


def _by_second(
    title: str, names: Sequence[str], rows: Sequence[Compared], given: dict[str, dict[str, str]]
) -> Chart:
    """Lines over the first option, one for every value of the second."""
    first, second = names
    traces = []
    for index, value in enumerate(dict.fromkeys(given[c.label][second] for c in rows)):
        points = [(given[c.label][first], c) for c in rows if given[c.label][second] == value]
        traces.append(_trace(points, index, f"{second}={value}", "lines+markers"))
    return _chart(title, first, f" A line for every {second}.", traces)


def _trace(
    points: Sequence[tuple[str, Compared]], index: int, name: str, mode: str
) -> dict[str, Any]:
    numeric = [number for value, _ in points if (number := _number(value)) is not None]
    if len(numeric) == len(points):
        points = [pair for _, pair in sorted(zip(numeric, points, strict=True), key=lambda p: p[0])]
        x: list[Any] = sorted(numeric)
    else:
        x = [value for value, _ in points]
    means = [c.mean for _, c in points]
    trace: dict[str, Any] = {
        "x": x, "y": short(m.value for m in means), "mode": mode, "name": marked(name),
        "line": line_of(index), "marker": {"size": 7, "color": line_of(index)["color"]},
    }  # fmt: skip
    if all(m.n_seeds > 1 for m in means):
        trace["error_y"] = {
            "type": "data", "symmetric": False, "thickness": 1.2, "width": 4,
            "array": short(m.high - m.value for m in means),
            "arrayminus": short(m.value - m.low for m in means),
        }  # fmt: skip
    return trace


def _chart(title: str, option: str, more: str, traces: Sequence[dict[str, Any]]) -> Chart:
    values = [x for trace in traces for x in trace["x"]]
    axis: dict[str, Any] = {"title": {"text": marked(option)}, "dtick": None}
    if any(isinstance(x, str) for x in values):
        axis |= {"type": "category"}
    elif min(values) > 0 and max(values) / min(values) >= WIDE:
        axis |= {"type": "log", "exponentformat": "e"}
    text = f"Mean over seeds with its 95% interval, over {option}.{more}"
    layout = {"xaxis": axis, "yaxis": {}, "showlegend": len(traces) > 1}
    return Chart(f"{title} over {option}", text, tuple(traces), layout)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
