"""What runs measured: the costs of their stages, and the lengths of their answers."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from strop.planning.costs import costs_of
from strop.planning.course import Floats, Ints
from strop.planning.recorded import read_run
from strop.planning.work import Costs, Layout, Work
from strop.support.errors import UserError

UNSURE = 0.15  # deviation of a share, from which it is said
NUM_DRAWN = 4096  # lengths of a distribution
P99 = 2.3263478740408408  # standard deviations


@dataclass(frozen=True)
class Measured:
    """What is known of runs.

    costs: of layouts whose workers take turns; apart: of those where some train while others
    generate, which slows both. Each is of the runs of that kind, where there are such.
    shares: of a, b and c in the seconds of decode steps; unsure: the deviation of each.
    """

    costs: Costs
    apart: Costs
    work: Work
    shares: Floats
    unsure: Floats

    def costs_of(self, layout: Layout) -> Costs:
        """Those of a layout's kind."""
        return self.costs if layout.shared else self.apart

    def exchanging(self, seconds: float) -> "Measured":
        """The same with seconds for gradients and weights to be exchanged."""
        costs, apart = (replace(each, exchange=seconds) for each in (self.costs, self.apart))
        return replace(self, costs=costs, apart=apart)

    @property
    def warning(self) -> str:
        """What to say where the terms of a decode step could not be told apart; else nothing."""
        if self.unsure[0] < UNSURE:
            return ""
        return (
            "The steps of the run are too much alike to tell what a decode step costs from what "
            "each row of it costs, so numbers for other sizes are rough. A run with fewer prompts "
            "beside it helps: strop plan RUN OTHER."
        )


def measure(folders: Sequence[Path], lengths: Sequence[float] = (), prompts: int = 0) -> Measured:
    """What the first run does, at the costs that all of them tell.

    lengths: mean and, as an option, 99th percentile of a log-normal distribution, in place of the
    run's own. prompts: of a step, in place of the run's. Raises UserError for what is no run, and
    for one that tells too little.
    """
    runs = [read_run(folder) for folder in folders]
    first = runs[0]
    groups = [group for each in first.groups.values() for group in each]
    if lengths:
        groups = log_normal(lengths, first.size)
    if not groups:
        raise UserError(
            f"{first.folder} has recorded no rollouts, so the lengths of its answers are not known:"
            " give --lengths MEAN,P99, or train with training.rollouts_every above 0"
        )
    costs, shares, unsure = costs_of([run for run in runs if not run.apart] or runs)
    apart, *_ = costs_of([run for run in runs if run.apart] or runs)
    sampled, kept = first.mean("data/rollouts_sampled"), first.mean("data/rollouts_kept")
    count = prompts or max(round(sampled / first.size), 1)
    work = Work(tuple(groups), count, first.prompt, kept / sampled, first.slots)
    return Measured(costs, apart, work, shares, unsure)


MOST_TOKENS = 1e9  # of an answer


def log_normal(lengths: Sequence[float], size: int) -> list[Ints]:
    """Groups of answers whose lengths have this mean and 99th percentile; one length without it."""
    mean, high = lengths[0], lengths[-1]
    most = np.exp(P99**2 / 2)
    if not 1 <= mean <= high < min(most * mean, MOST_TOKENS):
        raise UserError(
            f"--lengths {','.join(f'{each:g}' for each in lengths)}: the mean must be 1 or more, "
            f"the 99th percentile at least the mean, less than {most:.0f} times as long and "
            f"less than {MOST_TOKENS:.0e} tokens"
        )
    sigma = P99 - np.sqrt(P99**2 - 2 * np.log(high / mean))
    drawn = np.random.default_rng(0).standard_normal(NUM_DRAWN // size * size or size)
    found = np.exp(np.log(mean) - sigma**2 / 2 + sigma * drawn)
    return list(np.maximum(found.round(), 1).astype(np.int64).reshape(-1, size))
