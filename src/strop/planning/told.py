"""A plan in words and as a table."""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from rich.table import Table

from strop.planning.measured import Measured
from strop.planning.simulate import Outcome, fastest
from strop.planning.work import Costs

HEADINGS = (
    "workers", "layout", "who", "tokens/s", "s/step", "idle", "engines", "trainers",
)  # fmt: skip
Found = Mapping[int, Sequence[Outcome]]  # the layouts of each number of workers


def told(measured: Measured) -> list[str]:
    """What was measured, a line each."""
    costs, work = measured.costs, measured.work
    lengths = np.concatenate(work.groups)
    answers = work.num_groups * np.mean([len(group) for group in work.groups])
    middle, high = np.percentile(lengths, [50, 99])
    lines = [
        f"a step: {answers:.0f} answers to {work.num_groups} prompts of {work.prompt:.0f} tokens, "
        f"{work.slots} at a time in an engine",
        f"an answer: {lengths.mean():.0f} tokens on average, half have at most {middle:.0f}, 1% "
        f"more than {high:.0f}",
        *_costs(costs),
        f"{measured.shares[0]:.0%} of the run's decoding is what a step costs whatever its rows "
        f"(give or take {measured.unsure[0]:.0%})",
    ]
    if measured.apart != costs:
        lines += ["where others train meanwhile:", *_costs(measured.apart)]
    return [*lines, measured.warning] if measured.warning else lines


def _costs(costs: Costs) -> list[str]:
    speed = costs.speed
    return [
        f"a decode step: {_short(speed.step)} s + {_short(speed.row)} s a row + "
        f"{_short(speed.cached)} s a cached token",
        f"reading at once: {_short(speed.begin)} s + {_short(speed.read)} s a token; an answer "
        f"beside that: {_short(speed.answer)} s and {_short(costs.reward)} s for its reward",
        f"training: {_short(costs.token)} s a token and {_short(costs.rest)} s a step",
    ]


def rows(found: Found) -> list[list[str]]:
    """The table's cells, a line a layout; who: engines + trainers, where they are not the same."""
    return [
        [
            f"{number:,}",
            outcome.layout.name,
            "all" if outcome.layout.shared else _who(outcome),
            f"{outcome.tokens_per_second:,.0f}",
            _short(outcome.step_seconds),
            *(f"{outcome.shares[name]:.0%}" for name in ("idle", "idle engines", "idle trainers")),
        ]
        for number, outcomes in found.items()
        for outcome in outcomes
    ]


def table(found: Found) -> Table:
    """For a terminal."""
    shown = Table(box=None, pad_edge=False, collapse_padding=True, header_style="bold")
    for heading in HEADINGS:
        side: Literal["left", "right"] = "left" if heading == "layout" else "right"
        shown.add_column(heading, justify=side, no_wrap=True)
    number = ""
    for row in rows(found):
        shown.add_row("" if row[0] == number else row[0], *row[1:])
        number = row[0]
    return shown


def proposals(found: Found) -> list[str]:
    """Of each number of workers the fastest layout."""
    lines = []
    for number, outcomes in found.items():
        best, plain = fastest(outcomes), outcomes[0]
        layout = best.layout
        who = "" if layout.shared else f": {layout.generate:,} generate, {layout.train:,} train"
        gain = best.tokens_per_second / plain.tokens_per_second
        more = "" if best is plain else f", {gain:.2f} times synchronous"
        lines.append(f"{number:,} worker{'s' * (number > 1)}: {layout.name}{who}{more}")
    return lines


def _who(outcome: Outcome) -> str:
    return f"{outcome.layout.generate:,} + {outcome.layout.train:,}"


def _short(number: float) -> str:
    return f"{number:.3g}"
