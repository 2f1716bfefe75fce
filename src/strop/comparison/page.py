"""compare.html: what was compared, the table, curves, differences; one file, no network."""

import tomllib
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from strop.comparison.charts import AXES, curves, differences, laws, line_of
from strop.comparison.names import number_of
from strop.comparison.plan import Plan
from strop.comparison.response import responses
from strop.comparison.scores import Row
from strop.comparison.table import estimate, heading, judged, labels_of, note, one_run
from strop.comparison.verdict import Compared
from strop.report.about import facts, flat
from strop.report.html import charts_grid, document, section, table
from strop.report.run_folder import Run
from strop.support.errors import UserError
from strop.support.writing import write_whole

FIRST = ("pass@1", "late/entropy", "completions/mean_length")  # of which differences are drawn
MOST_TITLE = 80  # letters of a heading
MANY = 12  # settings that are shown unfolded

Runs = Mapping[str, Mapping[int, Run]]


def write_page(
    plan: Plan, rows: Sequence[Row], runs: Runs, failures: Sequence[str], out: Path
) -> None:
    """Write the page. Raises UserError."""
    try:
        write_whole(out, render(plan, rows, runs, failures))
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror}") from error


def render(plan: Plan, rows: Sequence[Row], runs: Runs, failures: Sequence[str]) -> str:
    """The page as text."""
    body = [_header(plan, failures), "<main>\n"]
    for step, compared in judged(plan, rows).items():
        names = _first(compared)
        drawn = [c for name in names if (c := differences(plan, compared, name))]
        answer = charts_grid(responses(plan, compared, names), f"response-{step}")
        shown = _table(plan, compared) + charts_grid(drawn, f"difference-{step}")
        body.append(section(heading(plan, step), answer + shown))
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


def _header(plan: Plan, failures: Sequence[str]) -> str:
    each = [dict(facts(entry.config)) for entry in plan.entries]
    shown = [(k, v) for k, v in each[0].items() if all(found.get(k) == v for found in each)]
    shown += [("Seeds", ", ".join(map(str, plan.seeds))), ("Steps", str(plan.steps))]
    if len(plan.entries) > 1:
        shown.append(("Baseline", plan.baseline))
    if plan.scoring.files:
        shown.append(("Scored on", ", ".join(plan.scoring.files)))
    items = "".join(f"<dt>{escape(k)}</dt><dd>{escape(v)}</dd>" for k, v in shown)
    failed = "".join(f'<p class="note">failed: {escape(line)}</p>' for line in failures)
    return (
        f'<header>\n<h1>{escape(_title(plan))}</h1>\n<dl class="about">{items}</dl>\n'
        f"<p>{escape(note(plan, 'below it'))}</p>{failed}</header>\n"
    )


def _table(plan: Plan, compared: Sequence[Compared]) -> str:
    """A line a method, a column a number; below it what the numbers are."""
    if not compared:
        return ""
    numbers = {c.metric: number_of(c.metric, plan.scoring) for c in compared}
    cells = {(c.metric, c.label): _cell(c) for c in compared}
    head = "".join(
        f'<th title="{escape(number.meaning)}">{escape(number.name)}</th>'
        for number in numbers.values()
    )
    body = "".join(
        f'<tr><th scope="row">{escape(label).replace("(", "(<wbr>")}</th>'
        + "".join(f"<td>{cells.get((metric, label), '–')}</td>" for metric in numbers)
        + "</tr>"
        for label in labels_of(plan)
    )
    meanings = "".join(
        f"<dt>{escape(n.name)}</dt><dd>{escape(n.meaning)}</dd>" for n in numbers.values()
    )
    return (
        f'<div class="wide"><table class="compared"><thead><tr><th></th>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
        + _folded_table("What the numbers are", f'<dl class="about">{meanings}</dl>')
    )


def _cell(compared: Compared) -> str:
    value, _, interval = estimate(compared.mean).partition(" ")
    text = f"<b>{value}</b>" + (f" <span>{interval}</span>" if interval else "")
    if compared.difference is not None:
        mark = f' <i class="{compared.verdict}">{compared.verdict}</i>' if compared.verdict else ""
        text += f"<br><span>{estimate(compared.difference, signed=True)}</span>{mark}"
    return text


def _legend(plan: Plan) -> str:
    """The lines of all curves once, so that no chart needs room for long names."""
    marks = []
    for index, entry in enumerate(plan.entries):
        line = line_of(index)
        style = "solid" if line["dash"] == "solid" else "dashed"
        mark = f'<i style="border-top: 3px {style} {line["color"]}"></i>'
        marks.append(f"<li>{mark}{escape(entry.label)}</li>")
    return f'<ul class="legend">{"".join(marks)}</ul>\n'


def _settings(plan: Plan) -> str:
    """Settings that are not the same in all methods."""
    found = [dict(flat(tomllib.loads(entry.config))) for entry in plan.entries]
    lines = []
    for key in dict.fromkeys(key for settings in found for key in settings):
        values = [str(settings.get(key, "–")) for settings in found]
        if len(set(values)) > 1:
            lines.append([key, *values])
    if not lines:
        return ""
    shown = table("settings", ["Setting", *(e.label for e in plan.entries)], lines)
    return shown if len(lines) <= MANY else _folded_table(f"{len(lines)} settings", shown)


def _each(plan: Plan, rows: Sequence[Row]) -> str:
    """The numbers of every run and scored step."""
    keys = list(dict.fromkeys(key for row in rows for key in row.found))
    head = ["method", "seed", "step", *(number_of(key, plan.scoring).name for key in keys)]
    return table("numbers", head, (one_run(row, keys) for row in rows))


def _folded(title: str, content: str) -> str:
    return f"<details>\n<summary><h2>{escape(title)}</h2></summary>\n{content}\n</details>\n"


def _folded_table(title: str, content: str) -> str:
    return f"<details><summary>{escape(title)}</summary>{content}</details>"
