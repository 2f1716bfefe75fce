"""Means over seeds, paired differences from the baseline, and what they decide."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from strop.comparison.plan import START
from strop.evaluation.seeds import SeedEstimate, over_seeds, paired_difference, paired_p, range_of

LEVEL = 0.05  # of all comparisons of a metric together
FEWEST_SEEDS = 5  # below it there is no verdict


class Compared(NamedTuple):
    """One metric of one method: its mean, and how it differs from the baseline's.

    p: of the paired t-test; adjusted: by Holm over the metric's comparisons. verdict: "higher",
    "lower", "not decided", or empty: the baseline itself, or too few seeds.
    """

    label: str
    metric: str
    mean: SeedEstimate
    difference: SeedEstimate | None = None
    p: float = 1.0
    adjusted: float = 1.0
    verdict: str = ""


# metric -> label -> seed -> value
Scores = Mapping[str, Mapping[str, Mapping[int, float]]]


def judge(scores: Scores, baseline: str) -> list[Compared]:
    """Every metric of every method against the baseline, over the seeds that both have."""
    found = []
    for metric, by_label in scores.items():
        rows = [_compared(metric, label, by_label, baseline) for label in by_label]
        tested = [row.label for row in rows if row.difference and row.difference.n_seeds > 1]
        adjusted = dict(zip(tested, holm([r.p for r in rows if r.label in tested]), strict=True))
        found += [_decided(row, adjusted.get(row.label)) for row in rows]
    return found


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
