"""Writes a plan in words and as a table."""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
from rich.table import Table

from strop.planning.assumed import Assumed
from strop.planning.measured import Measured
from strop.planning.model_costs import KNOWN
from strop.planning.parallel import GIB
from strop.planning.simulate import Outcome, fastest
from strop.planning.work import Costs, Work

HEADINGS = (
    "workers", "layout", "who", "tokens/s", "s/step", "idle", "engines", "trainers",
)  # fmt: skip
SHARING = (
    "GPUs", "layout", "engine", "training", "GiB gen.", "train.", "generating waits for",
    "training waits for",
)  # fmt: skip
TAIL = 0.6  # share of the seconds above which the longest answer alone is the bound
Found = Mapping[int, Sequence[Outcome]]  # the layouts of each number of workers


def describe_measured(measured: Measured) -> list[str]:
    """The measured costs and work, one fact a line."""
    costs, work = measured.costs, measured.work
    lines = [
        *_step(work, f", {work.slots} at a time in an engine"),
        *_costs(costs),
        f"{measured.shares[0]:.0%} of the run's decoding is the fixed cost of decode steps, "
        f"whatever their rows (give or take {measured.unsure[0]:.0%})",
    ]
    if measured.apart != costs:
        lines += ["where others train meanwhile:", *_costs(measured.apart)]
    return [*lines, measured.warning] if measured.warning else lines


def _step(work: Work, slots: str, updates: str = "") -> list[str]:
    """The size of a step, and the lengths of answers."""
    lengths = np.concatenate(work.groups)
    answers = work.num_groups * np.mean([len(group) for group in work.groups])
    middle, high = np.percentile(lengths, [50, 99])
    return [
        f"a step: {answers:.0f} answers to {work.num_groups} prompts of {work.prompt:.0f} tokens"
        + slots + updates,
        f"an answer: {lengths.mean():.0f} tokens on average, half have at most {middle:.0f}, 1% "
        f"more than {high:.0f}",
    ]  # fmt: skip


def _costs(costs: Costs) -> list[str]:
    speed = costs.speed
    return [
        f"a decode step: {_short(speed.step)} s + {_short(speed.row)} s a row + "
        f"{_short(speed.cached)} s a cached token",
        f"prefill: {_short(speed.begin)} s + {_short(speed.read)} s a token; besides, an answer: "
        f"{_short(speed.answer)} s and {_short(costs.reward)} s for its reward",
        f"training: {_short(costs.token)} s a token and {_short(costs.rest)} s a step",
    ]


def describe_assumed(assumed: Assumed) -> list[str]:
    """The assumptions of a plan without a run, one fact a line."""
    case, work, found = assumed.case, assumed.work, assumed.calibrations
    model, gpu = case.model, case.gpu
    cache = model.cache_bytes(case.assumed.cache_bytes)
    unlike = "" if model.kind in KNOWN else f" ({model.kind or 'no'} type: counted as Llama)"
    lines = [
        f"{model.name}{unlike}: {_count(model.parameters)} parameters, {_count(model.active)} of "
        f"them for a token, {cache / 1024:.0f} KiB of cache a token; "
        f"{_count(model.per_token)} operations a token forward, {case.training_passes:g} times "
        f"that in training, and {_count(model.per_pair)} for each token before it",
        f"{gpu.name}: {gpu.flops / 1e12:.0f} TFLOP/s, {gpu.bandwidth / 1e12:.2f} TB/s, "
        f"{gpu.memory / GIB:.0f} GiB, {gpu.link / 1e9:.0f} GB/s to the {gpu.per_node} of its node, "
        f"{gpu.network / 1e9:.0f} GB/s beyond ({gpu.source})",
        *_step(work, "", f", {work.updates} updates" * (work.updates > 1)),
        "assumed, not measured (--assume NAME=VALUE): "
        + ", ".join(f"{name}={value:g}" for name, value in case.assumed.values.items()),
        "an engine: tp, its GPUs (*: training's state leaves them while they generate); "
        "training: tp, cp, pp, ep, tensor, context, pipeline and expert parallel, dp, sequences at "
        "once, with weights sharded over all GPUs or, zero1, the optimiser alone (strop itself: dp "
        f"and sharded weights); GiB: of a GPU, of which {case.room / GIB:.0f} may be used",
    ]
    return lines if found is None else [*lines, *found.lines]


def _count(number: float) -> str:
    """A number with a letter for thousands, millions and so on."""
    for size, letter in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.4g}{letter}"
    return f"{number:.4g}"


def headings(found: Found) -> tuple[str, ...]:
    """The headings of the table's columns."""
    share = any(outcome.sharing for outcomes in found.values() for outcome in outcomes)
    return ("GPUs", *HEADINGS[1:]) if share else HEADINGS


def rows(found: Found) -> list[list[str]]:
    """The table's cells, one row for each layout; who: engines + trainers, if they differ."""
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


def sharing_rows(found: Found) -> list[list[str]]:
    """One row for each layout: how GPUs share a model, the memory of each while generating and
    training, and what bounds both; empty when a run was planned.
    """
    return [
        [f"{number:,}", outcome.layout.name, sharing.engine.name, sharing.trainer.name,
         *(f"{size:.0f}" for size in sharing.peaks), *bounds(outcome)]
        for number, outcomes in found.items() for outcome in outcomes
        if (sharing := outcome.sharing) is not None
    ]  # fmt: skip


def bounds(outcome: Outcome) -> tuple[str, str]:
    """What the seconds of generating and of training are mostly spent on."""
    sharing, low, high = outcome.sharing, outcome.window[0] + 1, outcome.window[1] + 1
    assert sharing is not None
    longest = "the longest answer"
    rounds = outcome.ended[low:high] - outcome.started[low:high]
    each = outcome.drawn[low:high] - outcome.started[low:high, None]
    waits = outcome.layout.shared and float(each.mean()) < TAIL * float(rounds.mean())
    spent = float((outcome.trained - outcome.trains)[low:high].sum())
    alone = float(outcome.unshared[low:high].sum()) > (1 - TAIL) * spent
    return longest if waits else sharing.engine.bound, longest if alone else sharing.trainer.bound


def table(found: Found) -> Table:
    """The table for a terminal."""
    return _table(headings(found), rows(found), ("layout",))


def sharing_table(found: Found) -> Table:
    """The table of how GPUs share a model, for a terminal."""
    words = ("layout", "engine", "training", "generating waits for", "training waits for")
    return _table(SHARING, sharing_rows(found), words)


def _table(head: Sequence[str], lines: Sequence[Sequence[str]], words: Sequence[str]) -> Table:
    """A table for a terminal; words: headings of columns that hold text."""
    shown = Table(box=None, pad_edge=False, collapse_padding=True, header_style="bold")
    for heading in head:
        side: Literal["left", "right"] = "left" if heading in words else "right"
        shown.add_column(heading, justify=side, no_wrap=True)
    number = ""
    for row in lines:
        shown.add_row("" if row[0] == number else row[0], *row[1:])
        number = row[0]
    return shown


def proposals(found: Found) -> list[str]:
    """The fastest layout for each number of workers."""
    lines = []
    for number, outcomes in found.items():
        best, plain = fastest(outcomes), outcomes[0]
        layout, sharing = best.layout, best.sharing
        who = f": {layout.generating:,} generate, {layout.training:,} train"
        who = "" if layout.shared else who
        gain = best.tokens_per_second / plain.tokens_per_second
        alone = best is plain or plain.layout.name != "synchronous"
        more = "" if alone else f", {gain:.2f} times synchronous"
        what = "worker" if sharing is None else "GPU"
        how = "" if sharing is None else f" ({sharing.name})"
        lines.append(f"{number:,} {what}{'s' * (number > 1)}: {layout.name}{who}{how}{more}")
    return lines


def _who(outcome: Outcome) -> str:
    return f"{outcome.layout.generating:,} + {outcome.layout.training:,}"


def _short(number: float) -> str:
    return f"{number:.3g}"
