"""Writes the page's tables as HTML: headline numbers, every number, settings, machines."""

import math
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from strop.report.about import changed, parsed
from strop.report.html import framed, table
from strop.report.run_folder import Run
from strop.report.sections import score_keys
from strop.support.files import flat

LIMITS = ("low", "high")
HEADLINES = (
    ("reward", "Reward", "number"),
    ("eval/validation/nll", "Negative log-likelihood of given answers, nats", "number"),
    ("preference/accuracy", "Training pairs in the right order", "percent"),
    ("entropy", "Entropy, nats per token", "number"),
    ("kl", "KL to the reference, nats per token", "number"),
    ("completions/mean_length", "Completion length, tokens", "number"),
    ("completions/clipped_ratio", "Completions cut off", "percent"),
    ("frac_reward_zero_std", "Groups without a difference", "percent"),
    ("grad_norm", "Gradient norm", "number"),
    ("step_time", "Seconds per step", "number"),
)
ENVIRONMENT = {
    "begun": "Begun",
    "after_step": "After step",
    "platform": "Platform",
    "device": "Device",
    "cores": "Cores",
    "threads": "Threads",
    "processes": "Training processes",
    "memory_gib": "Memory, GiB",
    "packages": "Packages with parts",
}


def headlines(runs: Sequence[Run]) -> str:
    """Start -> end of the main numbers, one row each; evaluation scores carry their intervals.

    Start and end are means over the first and last tenth of the recorded steps (at most 20);
    evaluation scores are the first and last evaluation.
    """
    rows = []
    scores = [
        (key, f"{metric} on {name}", "percent" if all(r.is_share(key) for r in runs) else "number")
        for key, name, metric in score_keys(runs)
    ]
    for key, label, unit in (HEADLINES[0], *scores, *HEADLINES[1:]):
        cells = [_start_end(run, key, unit, whole=key.startswith("eval/")) for run in runs]
        if any(cell is not None for cell in cells):
            filled = [td for cell in cells for td in (cell or ("–", "–", "–"))]
            rows.append([label, *filled])
    if not rows:
        return ""
    names = "".join(f'<th colspan="3">{escape(run.name)}</th>' for run in runs)
    top = f"<tr><th></th>{names}</tr>" if len(runs) > 1 else ""
    head = top + "<tr><th></th>" + "<th>Start</th><th>End</th><th>Change</th>" * len(runs) + "</tr>"
    return framed("headline", head, rows)


def every_number(run: Run) -> str:
    """Each recorded number with its first, last, smallest and largest value."""
    rows = []
    for key in sorted(run.numbers):
        steps, values = run.series(key)
        numbers = (values[0], values[-1], values.min(), values.max())
        rows.append([key, str(len(steps)), *(show(number) for number in numbers)])
    names = ("Number", "Values", "First", "Last", "Smallest", "Largest")
    return table("numbers", names, rows)


def set_by_hand(run: Run) -> str:
    """The settings that differ from the defaults, each with its default."""
    rows, note = changed(run.config)
    shown = table("settings", ("Setting", "Here", "Default"), rows) if rows else ""
    if run.config and not rows and not note:
        note = "Every setting has its default."
    return shown + (f"<p>{escape(note)}</p>" if note else "")


def differing_settings(runs: Sequence[Run]) -> str:
    """Settings that differ between runs, without seeds of one method; empty for a single run."""
    rows = differing([dict(flat(parsed(run.config))) for run in runs])
    if any(run.members for run in runs):
        rows = [row for row in rows if row[0] != "seed"]
    return table("settings", ["Setting", *(run.name for run in runs)], rows) if rows else ""


def differing(
    settings: Sequence[Mapping[str, Any]], shown: Callable[[Any], str] = repr
) -> list[list[str]]:
    """Each name whose values differ between the settings, with these values."""
    rows = []
    for key in dict.fromkeys(key for each in settings for key in each):
        values = [shown(each[key]) if key in each else "–" for each in settings]
        if len(set(values)) > 1:
            rows.append([key, *values])
    return rows


def environments(runs: Sequence[Run]) -> str:
    """Versions and machine of each run; values that changed at a resume follow each other."""
    known = [run for run in runs if run.environment]
    names = {key: ENVIRONMENT.get(key, key) for run in known for key in run.environment[-1]}
    rows = []
    for key, name in names.items():
        starts = ([str(start.get(key, "–")) for start in run.environment] for run in known)
        rows.append([name, *(" → ".join(dict.fromkeys(each)) for each in starts)])
    if len(known) == 1:
        return framed("settings", "", rows)
    return table("settings", ["", *(run.name for run in known)], rows) if known else ""


def show(value: float, unit: str = "number") -> str:
    """A number in three significant digits (whole numbers in full); a share as a percentage."""
    if unit == "percent":
        return f"{100 * value:z.1f}%"
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:.3g}"


def _ends(values: NDArray[np.float64]) -> tuple[float, float]:
    """Means over the first and the last tenth of the values, each over at most 20."""
    span = max(1, min(20, len(values) // 10))
    return float(values[:span].mean()), float(values[-span:].mean())


def _start_end(run: Run, key: str, unit: str, *, whole: bool) -> tuple[str, str, str] | None:
    """Start, end and change; `whole` takes single values (with their intervals), not means."""
    _, values = run.series(key)
    if not len(values):
        return None
    start, end = (float(values[0]), float(values[-1])) if whole else _ends(values)
    change = "–"
    if whole and math.isnan(run.last_validation(key)):
        return show(start, unit) + _interval(run, key, 0, unit), "–", change
    if len(values) > 1:
        change = ("+" if end > start else "") + show(end - start, unit).replace("%", " pts")
    first, last = (_interval(run, key, i, unit) if whole else "" for i in (0, -1))
    return show(start, unit) + first, show(end, unit) + last, change.replace("-", "−")


def _interval(run: Run, key: str, index: int, unit: str) -> str:
    found = interval(run, key, index)
    return f" [{', '.join(show(limit, unit) for limit in found)}]" if found else ""


def interval(run: Run, key: str, index: int) -> tuple[float, float] | None:
    """The interval over seeds, or else the one over prompts; None when there is neither."""
    if key in run.spread:
        _, low, high = run.spread[key]
        known = high[index] > low[index]  # with equal values the spread is unknown
        return (float(low[index]), float(high[index])) if known else None
    step = run.series(key)[0][index]
    limits = [values[steps == step] for steps, values in (run.series(f"{key}/{e}") for e in LIMITS)]
    if not all(len(limit) for limit in limits):
        return None
    return float(limits[0][0]), float(limits[1][0])


def verdict(run: Run) -> str:
    """A sentence on the result of a run: its first validation score, or else its reward.

    A score rose or fell when the intervals of the first and the last validation do not overlap.
    """
    steps = f"{run.num_steps:,} step{'' if run.num_steps == 1 else 's'}"
    key, name, metric = next(iter(score_keys([run])), ("reward", "", ""))
    _, values = run.series(key)
    if not len(values):
        return ""
    if not name:
        start, end = (show(mean) for mean in _ends(values))
        return f"The reward in training went from {start} to {end} in {steps}, without validation."
    if math.isnan(run.last_validation(key)):
        before = show(float(values[0]), "percent")
        return f"{metric} on {name} was {before}; the last validation, of {steps}, has no score."
    limits = interval(run, key, -1)
    within = f" (95% interval {' to '.join(show(x, 'percent') for x in limits)})" if limits else ""
    end = f"{show(float(values[-1]), 'percent')}{within}"
    if len(values) == 1:
        return f"{metric} on {name} is {end} after {steps}."
    first, start = interval(run, key, 0), show(float(values[0]), "percent")
    if first and limits and first[0] <= limits[1] and limits[0] <= first[1]:
        return (
            f"{metric} on {name} was {start} and is {end} after {steps}: the intervals overlap, "
            "so this shows no change."
        )
    way = "went" if not (first and limits) else "rose" if values[-1] > values[0] else "fell"
    return f"{metric} on {name} {way} from {start} to {end} in {steps}."
