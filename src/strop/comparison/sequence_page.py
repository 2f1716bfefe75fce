"""The result of a sequence of tasks, as a Markdown table and as a page."""

from html import escape
from pathlib import Path

from strop.comparison.sequence import Cell, Result
from strop.report.charts import COLOURS, GREY, Chart, see_through, short
from strop.report.html import charts_grid, document, section, table
from strop.support.tables import markdown_table
from strop.support.writing import write_whole, writing

SHADE = 0.75  # opacity of an accuracy of 1
COST = ("task", "tokens sampled", "seconds", "peak memory, GiB")
NUMBER = ("number", "value", "what it is")


def write_result(result: Result, folder: Path) -> None:
    """Write result.json, table.md and sequence.html. Raises UserError."""
    with writing(folder, "what came of the sequence"):
        write_whole(folder / "result.json", result.to_json())
        write_whole(folder / "table.md", markdown(result))
        write_whole(folder / "sequence.html", render(result, folder))


def markdown(result: Result) -> str:
    """The matrix, the numbers that follow from it, and the costs."""
    sets = result.plan.sets
    matrix = [[name, *map(_shown, row)] for name, row in _rows(result)]
    parts = [markdown_table(["after", *sets], matrix), markdown_table(NUMBER, numbers(result))]
    parts.append(markdown_table(COST, costs(result)))
    return "\n\n".join(parts) + "\n"


def _rows(result: Result) -> list[tuple[str, tuple[Cell, ...]]]:
    return list(zip(("the start", *result.plan.tasks), result.rows, strict=True))


def _shown(cell: Cell) -> str:
    interval = f" ({cell.low:.3f} to {cell.high:.3f})" if cell.low == cell.low else ""
    return f"{cell.value:.3f}{interval}"


def numbers(result: Result) -> list[list[str]]:
    """The numbers that follow from the matrix: name, value and definition."""
    found = result.kept
    several = ", ".join
    rows = [
        ("accumulation", several(f"{x:.3f}" for x in found.accumulation),
         "mean over all tasks, seen or not, after each"),
        ("seen", several(f"{x:.3f}" for x in found.seen), "mean over the tasks so far"),
        ("learnt", f"{found.learnt:.3f}", "mean accuracy on a task right after it"),
        ("forgetting", f"{found.forgetting:.3f}",
         "best accuracy after any task less that at the end, mean over all tasks but the last; a "
         "maximum of noisy numbers, so above 0 by half a cell's standard error with two tasks, by "
         "all of it with four, by 1.5 times it with ten, if nothing was forgotten"),
        ("backward transfer", f"{found.backward:+.3f}",
         "accuracy at the end less that right after the task, the same mean; not biased"),
        ("forward transfer", f"{found.forward:+.3f}",
         "accuracy right before a task less that of the start, mean over all tasks but the first"),
        ("retention", several(f"{x:.3f}" for x in found.retention),
         "accuracy on the suites never trained on, over that of the start, after each task"),
        ("standard error", f"{found.error:.3f}",
         "of a cell, over prompts, mean; the prompts are the same each time, so differences "
         "between the rows of a column are less noisy than that"),
    ]  # fmt: skip
    return [[*row] for row in rows if row[1] and "nan" not in row[1]]


def costs(result: Result) -> list[list[str]]:
    """The costs of each task."""
    pairs = zip(result.plan.tasks, result.costs, strict=True)
    return [[name, f"{c.tokens:,.0f}", f"{c.seconds:.0f}", f"{c.memory:.2f}"] for name, c in pairs]


def render(result: Result, folder: Path) -> str:
    """The page as text."""
    plan = result.plan
    counts = ", ".join(f"{n} {k}" for n, k in zip(plan.sets, plan.prompts, strict=True))
    facts = {
        "Method": plan.method, "Tasks": ", ".join(plan.tasks),
        "Held-out suites": ", ".join(plan.suites) or "none", "Accuracy": plan.metric,
        "Prompts": counts,
    }  # fmt: skip
    about = "".join(f"<dt>{k}</dt><dd>{escape(v)}</dd>" for k, v in facts.items())
    reports = "".join(
        f'<li><a href="{escape(run.name)}/report.html">{escape(run.name)}</a></li>'
        for run in (plan.folder_of(number, folder) for number in range(len(plan.tasks)))
    )
    charts = [chart for chart in (_over_tasks(result), _kept_and_gathered(result)) if chart]
    body = [
        f'<header>\n<h1>{escape(" → ".join(plan.tasks))}</h1>\n<dl class="about">{about}</dl>\n',
        "</header>\n<main>\n",
        section("Accuracy after each task", _heat(result)),
        section("Over the sequence", charts_grid(charts, "sequence")),
        section("What was learnt and kept", table("settings", NUMBER, numbers(result))),
        section("What it took", table("numbers", COST, costs(result))),
        section("The runs", f"<ul>{reports}</ul>"),
        "</main>\n",
    ]
    return document(f"strop: {', '.join(plan.tasks)}", "".join(body))


def _heat(result: Result) -> str:
    """The matrix; the darker a cell, the more accurate."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in result.plan.sets)
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th>'
        + "".join(
            f'<td style="background: {see_through(COLOURS[0], SHADE * max(cell.value, 0))}">'
            f"<b>{cell.value:.3f}</b>"
            + (f" <span>{cell.low:.3f} to {cell.high:.3f}</span>" if cell.low == cell.low else "")
            + "</td>"
            for cell in row
        )
        + "</tr>"
        for name, row in _rows(result)
    )
    return (
        '<div class="wide" tabindex="0"><table class="compared"><thead><tr><th>after</th>'
        f"{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _over_tasks(result: Result) -> Chart:
    """One line for each task and suite over the stages."""
    x = ["the start", *result.plan.tasks]
    data = []
    for number, name in enumerate(result.plan.sets):
        cells = [row[number] for row in result.rows]
        suite = number >= len(result.plan.tasks)
        colour = GREY if suite else COLOURS[number % len(COLOURS)]
        trace = {
            "x": x, "y": short(cell.value for cell in cells), "name": name,
            "mode": "lines+markers",
            "line": {"color": colour, "width": 2, "dash": "dot" if suite else "solid"},
        }  # fmt: skip
        if all(cell.low == cell.low for cell in cells):
            trace["error_y"] = {
                "type": "data", "symmetric": False, "thickness": 1.2, "width": 4,
                "array": short(cell.high - cell.value for cell in cells),
                "arrayminus": short(cell.value - cell.low for cell in cells),
            }  # fmt: skip
        data.append(trace)
    axis = {"title": {"text": "after"}, "type": "category", "dtick": None}
    layout = {"xaxis": axis, "yaxis": {"rangemode": "tozero"}, "showlegend": True}
    caption = "Accuracy with its 95% interval over prompts; dotted: never trained on."
    return Chart("Each task", caption, tuple(data), layout)


def _kept_and_gathered(result: Result) -> Chart | None:
    """Accumulation against retention, one point for each task."""
    found = result.kept
    if not len(found.retention) or (found.retention != found.retention).any():
        return None
    trace = {
        "x": short(found.retention), "y": short(found.accumulation),
        "text": list(result.plan.tasks), "mode": "lines+markers+text",
        "textposition": "top center", "line": {"color": COLOURS[0], "width": 1},
        "marker": {"size": 8}, "showlegend": False, "cliponaxis": False,
    }  # fmt: skip
    layout = {
        "xaxis": {"title": {"text": "retention"}, "dtick": None},
        "yaxis": {"title": {"text": "accumulation"}},
        "showlegend": False,
    }
    caption = "Mean over all tasks, over what is left of the held-out suites; a point a task."
    return Chart("Accumulation against retention", caption, (trace,), layout)
