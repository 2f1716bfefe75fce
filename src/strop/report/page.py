"""Writes the report page: one HTML file that opens without a network."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path

from strop.report.about import best_of, changed, facts
from strop.report.browser import rollout_browser
from strop.report.charts import Chart
from strop.report.html import charts_grid, document, section, slug
from strop.report.run_folder import Run, read_run
from strop.report.sections import sections
from strop.report.seeds import by_method, seed_of
from strop.report.tables import (
    differing_settings,
    environments,
    every_number,
    headlines,
    set_by_hand,
    verdict,
)
from strop.support.errors import UserError
from strop.support.writing import write_whole, writing


def write_report(runs: Sequence[Path], out: Path) -> Path:
    """Write one page about the folders of one or more runs; returns `out`.

    Several runs share their charts, with one colour for each method. What a run has not recorded is
    left out and named in a note. Raises UserError without a run, for a folder that is not a run,
    and for a damaged metrics file.
    """
    if not runs:
        raise UserError("a report needs at least one run's folder.")
    read = unique_names([read_run(Path(folder)) for folder in runs], runs)
    page = render(read).encode("utf-8", "backslashreplace").decode()
    with writing(out.parent, f"the report {out.name}", len(page)):
        out.parent.mkdir(parents=True, exist_ok=True)
        write_whole(out, page)
    return out


def render(runs: Sequence[Run]) -> str:
    """The page as text."""
    return document(title_of(runs), body(parts(runs)))


def title_of(runs: Sequence[Run]) -> str:
    """The page's title, which the browser shows in its tab."""
    return "strop: " + ", ".join(run.name for run in by_method(runs))


def body(found: Mapping[str, str]) -> str:
    """The header and the sections in their order."""
    return f"{found['header']}<main>\n{''.join(list(found.values())[1:])}</main>\n"


def parts(runs: Sequence[Run], states: Sequence[str] = ()) -> dict[str, str]:
    """The header and each section by its anchor; sections without content are left out.

    Runs that differ only in their seed are one method, drawn as their mean and its interval.
    states: how far each run is, for runs that are being watched.
    """
    methods = by_method(runs)
    first = {"Learning": "", "Numbers": headlines(methods)}
    last = {
        "Rollouts": rollout_browser(runs),
        "Settings": _settings(methods),
        "Environment": environments(runs),
        "Every recorded number": _folded(methods, [every_number(m) for m in methods]),
    }
    # a user's part may draw in a section of the page's own, in any spelling of its title
    titles = {slug(title): title for title in (*first, *last)}
    charts: dict[str, list[Chart]] = {}
    for title, several in sections(methods):
        charts.setdefault(titles.setdefault(slug(title), title), []).extend(several)
    drawn = {title: charts_grid(several, title) for title, several in charts.items()}
    found = dict.fromkeys([*first, *(title for title in drawn if title not in last), *last], "")
    for content in (drawn, first, last):
        found |= {title: found[title] + more for title, more in content.items()}
    whole = {slug(title): section(title, content) for title, content in found.items() if content}
    return {"header": _header(methods, runs, states), **whole}


def unique_names(runs: Sequence[Run], folders: Sequence[Path]) -> list[Run]:
    """The runs, renamed to whole paths where two folders have the same name."""
    names = [run.name for run in runs]
    return [
        replace(run, name=str(folder)) if names.count(run.name) > 1 else run
        for run, folder in zip(runs, folders, strict=True)
    ]


def _header(methods: Sequence[Run], runs: Sequence[Run], states: Sequence[str]) -> str:
    names = " <i>and</i> ".join(escape(method.name) for method in methods)
    items = [f'<p class="state">{escape(state)}</p>' for state in states]
    for method in methods:
        if len(methods) > 1:
            items.append(f"<h3>{escape(method.name)}</h3>")
        if sentence := verdict(method):
            items.append(f'<p class="verdict">{escape(sentence)}</p>')
        listed = "".join(
            f"<div><dt>{name}</dt><dd>{escape(value)}</dd></div>" for name, value in _about(method)
        )
        items.append(f'<dl class="facts">{listed}</dl>')
        for run in method.members or (method,):
            whose = "" if len(runs) == 1 else f"{run.name}: "
            items += [f'<p class="note">{escape(whose + note)}</p>' for note in run.notes]
    return f"<header>\n<h1>{names}</h1>\n{''.join(items)}\n</header>\n"


def _about(method: Run) -> list[tuple[str, str]]:
    """Facts about a method, and how far its run or runs have come."""
    items = facts(method.config)
    if method.members:
        items.append(("Runs", ", ".join(run.name for run in method.members)))
        items.append(("Seeds", ", ".join(str(seed_of(run)) for run in method.members)))
    items.append(("Each trained" if method.members else "Trained", _trained(method)))
    if (best := best_of(method)) and not method.members:
        items.append(("Best checkpoint", f"step {best.step} · {best.name} {best.value:.4g}"))
    rows, _ = changed(method.config)
    kept = [row for row in rows if not (method.members and row[0] == "seed")]
    if kept:
        items.append(("Set", " · ".join(f"{path}={value}" for path, value, _ in kept)))
    return items


def _trained(run: Run) -> str:
    """Steps, tokens and time in one line."""
    parts = [f"{run.num_steps:,} step{'' if run.num_steps == 1 else 's'}"]
    _, tokens = run.series("num_tokens")
    if len(tokens):
        parts.append(f"{tokens[-1]:,.0f} tokens")
    _, seconds = run.series("step_time")
    if len(seconds):
        minutes, rest = divmod(round(seconds.sum()), 60)
        hours, minutes = divmod(minutes, 60)
        times = ((hours, "h"), (minutes, "min"), (rest, "s"))
        parts.append(" ".join(f"{count} {unit}" for count, unit in times if count) or "under 1 s")
    return " · ".join(parts)


def _folded(runs: Sequence[Run], contents: Sequence[str]) -> str:
    """Each run's content, folded under the run's name."""
    return "".join(
        f"<details><summary>{escape(run.name)}</summary>{content}</details>\n"
        for run, content in zip(runs, contents, strict=True)
        if content
    )


def _settings(methods: Sequence[Run]) -> str:
    """The settings that a method changes, or those that differ between methods; then the whole
    configurations, of several seeds that of the first.
    """
    texts = [f"<pre>{escape(method.config)}</pre>" if method.config else "" for method in methods]
    alone = len(methods) == 1
    first = set_by_hand(methods[0]) if alone else differing_settings(methods)
    return first + _folded(methods, texts)
