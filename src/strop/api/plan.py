"""`Run.plan` and `strop plan`: the speed of a run on other numbers of workers, or of a model on a
number of GPUs before there is a run.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from strop.api import tables
from strop.api.arguments import checked
from strop.api.folders import path_of
from strop.api.tables import Table
from strop.planning.assumed import Assumed, Only
from strop.planning.calibrated import calibrate
from strop.planning.hardware import Assumptions, gpu_of
from strop.planning.lengths import log_normal, read_lengths, regrouped
from strop.planning.measured import measure
from strop.planning.model_costs import read_model
from strop.planning.page import write_page
from strop.planning.parallel import GIB, Case
from strop.planning.simulate import Outcome, Progress, layouts, silent
from strop.planning.text import (
    bounds,
    describe_assumed,
    describe_measured,
    headings,
    proposals,
    rows,
)
from strop.planning.work import Work
from strop.support.errors import UserError

MOST_WORKERS = 65_536
MOST_STALENESS = 256
MOST_PROMPTS = 65_536  # of a step
MOST_ANSWERS = 1_048_576
MOST_SPARE = 16.0
MOST_SECONDS = 86_400.0


@dataclass(frozen=True)
class Planned:
    """Layouts for each number of workers: printed, as a table, or as a page.

    names: of the planned runs or model; facts: what is known of them, one line each.
    """

    names: tuple[str, ...]
    facts: tuple[str, ...]
    found: Mapping[int, Sequence[Outcome]]

    @property
    def rows(self) -> list[dict[str, Any]]:
        """One row for each layout: workers, which generate and train, speed and idle shares."""
        return [
            {
                "workers": number,
                "layout": each.layout.name,
                "generate": each.layout.generating,
                "train": each.layout.training,
                "tokens_per_second": each.tokens_per_second,
                "step_seconds": each.step_seconds,
                **{name.replace(" ", "_"): share for name, share in each.shares.items()},
                **_sharing(each),
            }
            for number, outcomes in self.found.items()
            for each in outcomes
        ]

    @property
    def table(self) -> Table:
        """The rows as a table."""
        return tables.of_rows(self.rows)

    @property
    def proposals(self) -> list[str]:
        """The fastest layout for each number of workers, in words."""
        return proposals(self.found)

    def save(self, path: str | Path = "plan.html") -> Path:
        """Write the page with charts; returns its path. Raises UserError."""
        place = path_of(path, "path")
        write_page(self.names, self.facts, self.found, place)
        return place

    def __repr__(self) -> str:
        shown = tables.as_text(headings(self.found), rows(self.found))
        return "\n".join([*self.facts, "", shown, "", *self.proposals])

    def _repr_html_(self) -> str:
        lines = [[line] for line in (*self.facts, "", *self.proposals)]
        head = headings(self.found)
        return tables.as_html("", rows(self.found), head) + tables.as_html("", lines)


def _sharing(outcome: Outcome) -> dict[str, Any]:
    """Columns that say how GPUs share a model; empty where a run was planned."""
    sharing = outcome.sharing
    if sharing is None:
        return {}
    generating, training = bounds(outcome)
    stages = {"generating": sharing.engine.memory, "training": sharing.trainer.memory}
    return {
        "engine": sharing.engine.name, "trainer": sharing.trainer.name,
        "generating_waits_for": generating, "training_waits_for": training,
        **{f"{stage}_gib": sum(memory.values()) / GIB for stage, memory in stages.items()},
        **{f"{stage}_{name}_gib": size / GIB for stage, memory in stages.items()
           for name, size in memory.items()},
    }  # fmt: skip


@checked
def plan(
    runs: Sequence[Path],
    workers: Sequence[int],
    staleness: Sequence[int],
    lengths: Sequence[float],
    prompts: int,
    spare: float,
    exchange: float,
    extrapolate: bool = False,
    progress: Progress = silent,
) -> Planned:
    """The layouts at the costs measured in the runs; arguments as in `Run.plan`."""
    counts = _whole("workers", workers, MOST_WORKERS)
    bounds_ = _whole("staleness", staleness, MOST_STALENESS)
    _check_lengths(lengths)
    for name, value, most in (("spare", spare, MOST_SPARE), ("exchange", exchange, MOST_SECONDS),
                              ("prompts", prompts, MOST_PROMPTS)):  # fmt: skip
        _check_between(name, value, most)
    measured = measure(runs, lengths, prompts, extrapolate).exchanging(exchange)
    found = {
        n: layouts(measured.costs, measured.work, n, bounds_, spare, measured.apart, progress)
        for n in counts
    }
    return Planned(_names(runs), tuple(describe_measured(measured)), found)


@dataclass(frozen=True)
class Question:
    """A question about a model on GPUs; the fields are options of `strop plan`."""

    gpus: Sequence[int]
    kind: str
    staleness: Sequence[int] = (1,)
    lengths: Sequence[float] | Path = ()
    max_tokens: int = 0
    prompts: int = 0
    answers: int = 0
    prompt_tokens: int = 0
    updates: int = 1
    passes: float = 1.0
    spare: float = 1.0
    generate: int = 0
    assume: Sequence[str] = ()


PROMPTS, ANSWERS, PROMPT_TOKENS = 128, 16, 200  # of a step, where no option or run says so


def plan_model(
    model: Path, runs: Sequence[Path], asked: Question, progress: Progress = silent
) -> Planned:
    """Plans a model on GPUs, at assumed costs or at costs measured in runs on one such GPU."""
    counts = _whole("gpus", asked.gpus, MOST_WORKERS)
    bounds_ = _whole("staleness", asked.staleness, MOST_STALENESS)
    for name in ("prompts", "answers", "updates"):
        _check_between(name, getattr(asked, name), MOST_PROMPTS)
    _check_between("generate", asked.generate, max(counts) - 1)
    gpu, assumed = gpu_of(asked.kind), Assumptions().with_(asked.assume)
    case = Case(read_model(model), gpu, assumed, 0, 0.0, asked.passes)
    calibrations, measured = calibrate(case, runs) if runs else (None, None)
    case, work = _work_of(case, asked, None if measured is None else measured.work)
    planned = Assumed(case, work, Only(generating=asked.generate), calibrations)
    found = {n: planned.layouts(n, bounds_, asked.spare, progress) for n in counts}
    facts = describe_assumed(planned)
    if measured is None and not (asked.prompts and asked.answers):
        facts.append(_assumed_size(work))
    return Planned(_names([model, *runs]), tuple(facts), found)


def _assumed_size(work: Work) -> str:
    """Where the size of a step is from, if no run and not all options say so."""
    return (
        f"a step of {work.num_groups} prompts with {len(work.groups[0])} answers is assumed, as on "
        "clusters: give your run's with --prompts and --answers (strop train's default is 32 "
        "with 16)"
    )


def _work_of(case: Case, asked: Question, measured: Work | None) -> tuple[Case, Work]:
    """The work of a step, and the case with its sequences."""
    known = None if measured is None else measured.groups
    size = asked.answers or (len(known[0]) if known else ANSWERS)
    most = asked.max_tokens or math.inf
    if isinstance(asked.lengths, Path):
        groups = read_lengths(asked.lengths, size)
    elif asked.lengths:
        _check_lengths(asked.lengths)
        groups = log_normal(asked.lengths, size, most)
    elif known is not None:
        groups = regrouped(known, size)
    else:
        raise UserError(
            "give the lengths of answers in tokens: --lengths MEAN,P99, such as 3000,16000, or "
            "--lengths FILE with one in each line"
        )
    groups = [np.minimum(group, most).astype(np.int64) for group in groups]
    prompt = asked.prompt_tokens or (PROMPT_TOKENS if measured is None else measured.prompt)
    prompts = asked.prompts or (PROMPTS if measured is None else measured.num_groups)
    if prompts * size > MOST_ANSWERS:
        raise UserError(
            f"--prompts {prompts} --answers {size}: a step has more than {MOST_ANSWERS:,} answers"
        )
    longest = math.ceil(prompt) + (asked.max_tokens or max(int(each.max()) for each in groups))
    work = Work(tuple(groups), prompts, float(prompt), 1.0, 1, min(asked.updates, prompts * size))
    return replace(case, longest=longest, held=work.held), work


def _check_between(name: str, value: float, most: float) -> None:
    if not 0 <= value <= most:
        raise UserError(f"--{name} {value:g} is not between 0 and {most:g}")


def _check_lengths(lengths: Sequence[float]) -> None:
    if len(lengths) > 2:
        raise UserError(f"--lengths {_text(lengths)}: give MEAN or MEAN,P99, such as 800,4000")


def _names(paths: Sequence[Path]) -> tuple[str, ...]:
    return tuple(path.resolve().name for path in paths)


def _whole(option: str, values: Sequence[int], most: int) -> list[int]:
    """The distinct numbers in rising order. Raises UserError."""
    if not values:
        raise UserError(f"--{option}: nothing is no whole number")
    for each in values:
        if not 1 <= each <= most:
            raise UserError(f"--{option} {_text(values)}: {each} is not between 1 and {most}")
    return sorted(set(values))


def _text(values: Sequence[float]) -> str:
    return ",".join(f"{value:g}" for value in values)
