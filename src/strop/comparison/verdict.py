"""Means over seeds, paired differences from the baseline, and verdicts."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from strop.comparison.plan import START
from strop.evaluation.samples import Floats
from strop.evaluation.seeds import SeedEstimate, over_seeds, paired_difference, paired_p, range_of
from strop.support.students_t import shift_found

LEVEL = 0.05  # of all comparisons of a metric together
POWER = 0.8  # chance of finding a resolved difference
FEWEST_SEEDS = 5  # with fewer there is no verdict


class Compared(NamedTuple):
    """One metric of one method: its mean, and how it differs from the baseline's.

    p: of the paired t-test; adjusted: by Holm over the metric's comparisons. verdict: "higher",
    "lower", "not decided", or empty: the baseline itself, or too few seeds. resolves: the smallest
    difference that this number of seeds finds, on these prompts; elsewhere: the same on other
    prompts of their kind; NaN where unknown.
    """

    label: str
    metric: str
    mean: SeedEstimate
    difference: SeedEstimate | None = None
    p: float = 1.0
    adjusted: float = 1.0
    verdict: str = ""
    resolves: float = math.nan
    elsewhere: float = math.nan


# metric -> label -> seed -> value, and -> the values of all prompts
Scores = Mapping[str, Mapping[str, Mapping[int, float]]]
ByPrompt = Mapping[str, Mapping[str, Mapping[int, Floats]]]


def judge(scores: Scores, baseline: str, by_prompt: ByPrompt | None = None) -> list[Compared]:
    """Compare every metric of every method with the baseline, over the seeds that both have."""
    found = []
    for metric, by_label in scores.items():
        rows = [_compared(metric, label, by_label, baseline) for label in by_label]
        tested = [row.label for row in rows if row.difference and row.difference.n_seeds > 1]
        adjusted = dict(zip(tested, holm([r.p for r in rows if r.label in tested]), strict=True))
        prompts = (by_prompt or {}).get(metric, {})
        for row in rows:
            if row.label in tested:
                row = _resolved(row, by_label, prompts, baseline, len(tested))
            found.append(_decided(row, adjusted.get(row.label)))
    return found


def smallest_resolved(error: float, n_seeds: int, num_tests: int = 1) -> float:
    """The smallest difference that a paired test over n seeds finds in 8 of 10 such comparisons.

    error: the standard error of the mean difference. The level is the one that the smallest of
    `num_tests` p-values must reach under Holm. arXiv 2504.07086 notes that reports leave this out.
    """
    return shift_found(n_seeds - 1, LEVEL / num_tests, POWER) * error


def errors(gap_SP: Floats) -> tuple[float, float]:
    """Standard errors of a mean difference over seeds S and prompts P: on these prompts, and on
    other prompts of their kind.

        these^2 = var(seeds' means) / S
        other^2 = var(seeds' means) / S + var(prompts' means) / P - var(rest) / (S P)

    rest: the differences less the means of their seed and of their prompt. The first is the
    variance of seeds and rest, the second adds that of prompts: a two-way layout with two random
    effects (Searle, Casella and McCulloch, Variance Components, 1992, ch. 4).
    """
    num_seeds, num_prompts = gap_SP.shape
    seed_S, prompt_P = gap_SP.mean(1), gap_SP.mean(0)
    rest_SP = gap_SP - seed_S[:, None] - prompt_P + gap_SP.mean()
    these = float(seed_S.var(ddof=1)) / num_seeds
    if num_prompts < 2:
        return math.sqrt(these), math.nan
    rest = float((rest_SP**2).sum()) / ((num_seeds - 1) * (num_prompts - 1))
    more = float(prompt_P.var(ddof=1)) / num_prompts - rest / (num_seeds * num_prompts)
    return math.sqrt(these), math.sqrt(these + max(more, 0.0))


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values: the chance of any false decision stays below the level of one.

        p_(i) -> max_{j <= i} min(1, (m - j + 1) p_(j)),   p_(1) <= ... <= p_(m)

    Source: Holm, Scandinavian Journal of Statistics 6 (1979), 65-70.
    """
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def _compared(
    metric: str, label: str, by_label: Mapping[str, Mapping[int, float]], baseline: str
) -> Compared:
    ours, theirs = by_label[label], by_label.get(baseline, {})
    within = range_of(metric)
    mean = over_seeds(list(ours.values()), within=within)
    seeds = sorted(ours.keys() & theirs.keys())
    if label in (baseline, START) or not seeds:
        return Compared(label, metric, mean)
    pairs = [ours[seed] for seed in seeds], [theirs[seed] for seed in seeds]
    return Compared(label, metric, mean, paired_difference(*pairs, within=within), paired_p(*pairs))


def _resolved(
    row: Compared,
    by_label: Mapping[str, Mapping[int, float]],
    by_prompt: Mapping[str, Mapping[int, Floats]],
    baseline: str,
    num_tests: int,
) -> Compared:
    """The row with the smallest differences that it could have found."""
    ours, theirs = by_label[row.label], by_label[baseline]
    seeds = sorted(ours.keys() & theirs.keys())
    gaps = np.array([[ours[seed] - theirs[seed]] for seed in seeds])
    error, _ = errors(gaps)
    if error <= 1e-12 * np.abs(gaps).max():  # equal seeds tell nothing about other seeds
        return row
    row = row._replace(resolves=smallest_resolved(error, len(seeds), num_tests))
    mine, others = by_prompt.get(row.label, {}), by_prompt.get(baseline, {})
    if not all(seed in mine and seed in others for seed in seeds):
        return row
    if len({each[seed].shape for each in (mine, others) for seed in seeds}) > 1:  # other prompts
        return row
    gap_SP = np.stack([mine[seed] - others[seed] for seed in seeds])
    gap_SP = gap_SP[:, np.isfinite(gap_SP).all(0)]  # prompts that all runs have a score of
    if gap_SP.shape[1] < 2:
        return row
    error = errors(gap_SP)[1]
    return row._replace(elsewhere=smallest_resolved(error, len(seeds), num_tests))


def _decided(row: Compared, adjusted: float | None) -> Compared:
    gap = row.difference
    if gap is None or adjusted is None:
        return row
    row = row._replace(adjusted=adjusted)
    if gap.n_seeds < FEWEST_SEEDS:
        return row
    holds_zero = gap.low <= 0 <= gap.high or gap.value == 0
    if holds_zero or adjusted >= LEVEL:
        return row._replace(verdict="not decided")
    return row._replace(verdict="higher" if gap.value > 0 else "lower")
