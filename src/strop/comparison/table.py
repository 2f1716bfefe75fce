"""A comparison as a Markdown table, and as a CSV file of every run."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from strop.comparison import early, tuning
from strop.comparison.names import Number, number_of
from strop.comparison.plan import START, Plan
from strop.comparison.scores import Row, by_metric, each_prompt
from strop.comparison.tuning import Tried
from strop.comparison.verdict import FEWEST_SEEDS, Compared, judge
from strop.evaluation.seeds import SeedEstimate, range_of
from strop.support.tables import markdown_table, write_rows
from strop.support.writing import write_whole, writing


def judged(plan: Plan, rows: Sequence[Row]) -> dict[int, list[Compared]]:
    """Every scored step with its comparisons; at equal tokens one entry, 0."""
    if plan.scoring.by != "steps":
        return {0: judge(_once(by_metric(rows)), plan.baseline)}
    return {
        step: judge(_once(by_metric(rows, step)), plan.baseline, each_prompt(rows, step))
        for step in plan.scoring.at
    }


def _once(scores: dict[str, Any]) -> dict[str, Any]:
    """The numbers without the mean reward where it equals pass@1."""
    same = scores.get("mean@n") == scores.get("pass@1")
    return {name: found for name, found in scores.items() if not (same and name == "mean@n")}


def labels_of(plan: Plan) -> list[str]:
    """The columns of a table."""
    return [*([START] if plan.scoring.start else []), *(entry.label for entry in plan.entries)]


def markdown(
    plan: Plan, rows: Sequence[Row], notes: Sequence[str] = (), tried: Sequence[Tried] = ()
) -> str:
    """One table for each scored step, with metrics by methods; then the numbers' definitions.

    notes: lines on methods whose numbers need a caution. tried: all settings.
    """
    pieces, numbers = [note(plan)], dict[str, Number]()
    if tried:
        named = [(_code(of), _code(label), *more) for of, label, *more in tuning.lines_of(tried)]
        pieces += _section(tuning.TITLE, tuning.MEANING, tuning.HEAD, named)
    labels = labels_of(plan)
    for step, compared in judged(plan, rows).items():
        if not compared:
            continue
        pieces.append(f"\n## {heading(plan, step)}\n")
        cells = [(name, *line) for name, line in lines(plan, compared)]
        pieces.append(markdown_table(["", *map(_code, labels)], cells))
        numbers |= {c.metric: number_of(c.metric, plan.scoring) for c in compared}
    if picks := early.lines_of(plan, rows):
        pieces += _section(early.TITLE, early.meaning(plan), early.HEAD, picks)
    pieces += [f"\n{line}" for line in notes]
    pieces.append("\n## What the numbers are\n")
    pieces += [f"- {number.name}: {number.meaning}" for number in numbers.values()]
    return "\n".join(pieces) + "\n"


def _section(
    title: str, meaning: str, head: Sequence[str], rows: Sequence[Sequence[str]]
) -> list[str]:
    """A heading, the text below it, and a table."""
    return [f"\n## {title}\n", f"{meaning}\n", markdown_table(head, rows)]


def _code(label: str) -> str:
    return f"`{label}`"


def lines(plan: Plan, compared: Sequence[Compared]) -> list[tuple[str, list[str]]]:
    """The name of each metric, and its cells."""
    cells = {(c.metric, c.label): cell(c, len(plan.seeds)) for c in compared}
    return [
        (
            number_of(metric, plan.scoring).name,
            [cells.get((metric, label), "") for label in labels_of(plan)],
        )
        for metric in dict.fromkeys(c.metric for c in compared)
    ]


def note(plan: Plan, where: str = "after the semicolon") -> str:
    """How to read the cells; `where`: the place of the difference in a cell."""
    seeds = f"{len(plan.seeds)} seed{'s' if len(plan.seeds) > 1 else ''}"
    if len(plan.seeds) == 1:
        return f"{seeds}: cells hold its numbers. Fewer than {FEWEST_SEEDS} seeds decide nothing."
    text = f"{seeds}; cells hold the mean over seeds with its 95% interval"
    if len(plan.entries) > 1:
        text += f", {where} the paired difference from {plan.baseline}"
    if len(plan.seeds) < FEWEST_SEEDS:
        text += f". Fewer than {FEWEST_SEEDS} seeds decide nothing."
    else:
        text += (
            ". A difference is called higher or lower where its interval leaves out 0 and the "
            "p-value of the paired test, adjusted by Holm over the methods, is below 0.05."
        )
    if len(plan.entries) > 1 and len(plan.seeds) >= FEWEST_SEEDS:
        text += (
            " What it resolves is the smallest true difference that 8 of 10 such comparisons find, "
            "on these prompts and on other prompts of their kind."
        )
    return text


def heading(plan: Plan, step: int) -> str:
    """The heading of a table."""
    if plan.scoring.by != "steps":
        spent = number_of(plan.scoring.by, plan.scoring).name
        return f"Validation scores where all have the same {spent}"
    return f"Held-out scores after step {step}"


def cell(compared: Compared, num_seeds: int = 0) -> str:
    """Mean, difference and verdict. num_seeds: of the plan; with fewer in the mean it says so."""
    text = estimate(compared.mean) + fewer_seeds(compared, num_seeds)
    if compared.difference is None:
        return text
    text += f"; {difference(compared)}"
    return f"{text} {compared.verdict}".strip() + resolution(compared)


def difference(compared: Compared) -> str:
    """The difference, and of how many seeds it is where the mean has more."""
    gap = compared.difference
    assert gap is not None
    fewer = gap.n_seeds < compared.mean.n_seeds
    return estimate(gap, signed=True) + (_of_seeds(gap) if fewer else "")


def fewer_seeds(compared: Compared, num_seeds: int) -> str:
    """Of how many seeds the mean is, where the plan has more."""
    if compared.label == START or compared.mean.n_seeds >= num_seeds:
        return ""
    return _of_seeds(compared.mean)


def _of_seeds(found: SeedEstimate) -> str:
    return f" of {found.n_seeds} seed{'s' if found.n_seeds > 1 else ''}"


def estimate(found: SeedEstimate, signed: bool = False) -> str:
    """A value with its interval, if there is one."""
    digits = _decimals(max(abs(x) for x in found[:3] if not math.isnan(x)))
    nearest = max(found.low, -found.high)  # above 0: the limit next to 0, if the interval has no 0
    if nearest > 0 and round(nearest, digits) == 0:
        digits = -math.floor(math.log10(nearest))
    value, low, high = (f"{x:{'+' if signed else ''}z,.{digits}f}" for x in found[:3])
    return value if math.isnan(found.low) else f"{value} ({low} to {high})"


def _number(value: float) -> str:
    """A number with the digits that suit it; no zero has a minus."""
    return f"{value:z,.{_decimals(abs(value))}f}"


def _decimals(size: float) -> int:
    """The digits after the point that suit a number of that size."""
    if 0 < size < 0.001:  # three digits of a rate or a divergence
        return 2 - math.floor(math.log10(size))
    return 0 if size >= 1000 else 1 if size >= 100 else 3


def resolution(compared: Compared) -> str:
    """The smallest differences that the comparison finds; empty for too few seeds to decide."""
    gap = compared.difference
    if gap is None or gap.n_seeds < FEWEST_SEEDS or math.isnan(compared.resolves):
        return ""
    low, high = range_of(compared.metric)
    if compared.resolves > high - low:
        return "; resolves no difference that can be"
    text = f"; resolves {_number(compared.resolves)}"
    if not math.isnan(compared.elsewhere):
        text += f", on other prompts {_number(compared.elsewhere)}"
    return text


def one_run(row: Row, keys: Sequence[str]) -> list[str]:
    """A line of a run's numbers; of the model before training, seed and step are left out."""
    values = [_digits(row.found[key]) if key in row.found else "" for key in keys]
    if row.label == START:
        return [row.label, "", "0", *values]
    return [row.label, str(row.seed), str(row.step), *values]


def _digits(value: float) -> str:
    """A number with six digits, or all those before the point."""
    return f"{value:.0f}" if 1e6 <= abs(value) < 1e15 else f"{value:.6g}"


def write_tables(
    plan: Plan,
    rows: Sequence[Row],
    folder: Path,
    notes: Sequence[str] = (),
    tried: Sequence[Tried] = (),
) -> None:
    """Write scores.csv, one line for each run and scored step, and table.md. Raises UserError."""
    names = list(dict.fromkeys(name for row in rows for name in row.found))
    head = ("method", "seed", "step", *names)
    # The model before training has one line, for all scored steps.
    runs = dict.fromkeys(tuple(one_run(row, names)) for row in rows)
    with writing(folder, "the scores"):
        write_rows(folder / "scores.csv", head, [dict(zip(head, r, strict=True)) for r in runs])
        write_whole(folder / "table.md", markdown(plan, rows, notes, tried))
