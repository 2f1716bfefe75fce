"""Takes from runs the costs of their stages and the lengths of their answers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from strop.planning.costs import costs_of
from strop.planning.course import Floats
from strop.planning.lengths import log_normal
from strop.planning.recorded import Recorded, read_run
from strop.planning.work import Costs, Layout, Work
from strop.support.errors import UserError

UNSURE = 0.15  # deviation of a share above which a warning says so
FAR = 10.0  # costs count as known up to this multiple of the runs' longest answer


@dataclass(frozen=True)
class Measured:
    """Costs and work measured in runs.

    costs: of layouts whose workers take turns; apart: of layouts where some train while others
    generate, which slows both. Each is measured in runs of its kind, if there are any.
    shares: of a, b and c in the seconds of decode steps; unsure: the deviation of each. far: a
    warning when lengths are far above the measured ones.
    """

    costs: Costs
    apart: Costs
    work: Work
    shares: Floats
    unsure: Floats
    far: str = ""

    def costs_of(self, layout: Layout) -> Costs:
        """The costs of a layout's kind."""
        return self.costs if layout.shared else self.apart

    def exchanging(self, seconds: float) -> "Measured":
        """The same with `seconds` for the exchange of gradients and weights."""
        costs, apart = (replace(each, exchange=seconds) for each in (self.costs, self.apart))
        return replace(self, costs=costs, apart=apart)

    @property
    def warning(self) -> str:
        """A warning when the terms of a decode step could not be separated; else empty."""
        if self.unsure[0] < UNSURE:
            return self.far
        return f"{self.far} " * bool(self.far) + (
            "The steps of the run are too similar to separate the fixed cost of a decode step from "
            "the cost of each row, so numbers for other sizes are rough. A second run with fewer "
            "prompts helps: strop plan RUN OTHER."
        )


def measure(
    folders: Sequence[Path], lengths: Sequence[float] = (), prompts: int = 0,
    extrapolate: bool = False,
) -> Measured:  # fmt: skip
    """The work of the first run, with costs measured over all runs.

    lengths: mean and, optionally, 99th percentile of a log-normal distribution, in place of the
    run's own; extrapolate: allow lengths far above those. prompts: of a step, in place of the
    run's. Raises UserError for a folder that is not a run, and for a run with too little recorded.
    """
    runs = [read_run(folder) for folder in folders]
    first = runs[0]
    groups = [group for each in first.groups.values() for group in each]
    warning = ""
    if lengths:
        warning = _far(runs, lengths, extrapolate)
        groups = log_normal(lengths, first.size)
    if not groups:
        raise UserError(
            f"{first.folder} has recorded no rollouts, so the lengths of its answers are unknown: "
            "give --lengths MEAN,P99, or train with training.rollouts_every above 0"
        )
    costs, shares, unsure = costs_of([run for run in runs if not run.apart] or runs)
    apart, *_ = costs_of([run for run in runs if run.apart] or runs)
    sampled, kept = first.mean("data/rollouts_sampled"), first.mean("data/rollouts_kept")
    count = prompts or max(round(sampled / first.size), 1)
    work = Work(tuple(groups), count, first.prompt, kept / sampled, first.slots)
    return Measured(costs, apart, work, shares, unsure, warning)


def _far(runs: Sequence[Recorded], lengths: Sequence[float], allowed: bool) -> str:
    """A warning about lengths far above those of the runs. Raises UserError unless allowed."""
    longest = max(step["completions/max_length"] for run in runs for step in run.steps)
    times = lengths[-1] / longest
    if times <= FAR:
        return ""
    given = f"--lengths {','.join(f'{each:g}' for each in lengths)}"
    what = (
        f"{given} is {times:.0f} times the longest answer of {runs[0].folder} ({longest:.0f} "
        "tokens), where its costs were not measured"
    )
    if allowed:
        return f"{what}: the numbers are rough."
    raise UserError(
        f"{what}: give a run with longer answers, plan from the model (strop plan MODEL --gpus N "
        "--kind KIND), or extrapolate with --extrapolate"
    )
