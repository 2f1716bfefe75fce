"""Compares runs over seeds: means and paired differences with Student-t intervals.

An interval stays inside the range of its number: where Student's interval would leave it, the
limit is computed on the number's logarithm or logit.
"""

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from strop.evaluation.samples import COVERAGE
from strop.support.errors import UserError
from strop.support.students_t import central_probability, t_quantile

Within = tuple[float, float]  # the least and the largest value that a number can have
ANYTHING: Within = (-math.inf, math.inf)
SHARE: Within = (0.0, 1.0)
POSITIVE: Within = (0.0, math.inf)
_WHERE = re.compile(r"(late|mean|eval/[^/]+)/")  # before the names of numbers
_SHARES = re.compile(
    r"(pass|maj)@\d+|auc|answer_\w+_auc|\w+_accuracy(_per_token)?|tied_top|ece"
    r"|([^/]+/)*(frac(_\w+)?|\w+_fraction)|clip_ratio/\w+|completions/clipped_ratio|exit/\w+"
    r"|band|below|reached to .+"
)
_POSITIVE = re.compile(
    r"entropy|completions/\w+_length|grad_norm|step_time|timing_s/\w+|perf/\w+"
    r"|answer_entropy|effective_answers|distinct@\d+|nll|(sampled|trained|seconds|steps)( to .+)?"
)


def range_of(name: str) -> Within:
    """The range of a logged or compared number: a share, 0 or more, or anything."""
    where = _WHERE.match(name)
    plain = name[where.end() :] if where else name
    if _SHARES.fullmatch(plain):
        return SHARE
    return POSITIVE if _POSITIVE.fullmatch(plain) else ANYTHING


def limits(mean: Any, half: Any, within: Within = ANYTHING) -> tuple[Any, Any]:
    """The limits `mean -+ half`; a limit outside the number's range is computed on its logit (of a
    range with two ends) or logarithm (with a least value), with that half width to first order:

        logit(p) -+ half / ((high - low) p (1 - p)),   p = (mean - low) / (high - low)
        log(mean - low) - half / (mean - low)

    Numbers or arrays. A mean at an end of its range has no such scale: its limit is the end. One
    outside it, a user's own number called like a share, keeps `mean -+ half`.
    """
    least, most = within
    mean, half = np.asarray(mean, dtype=np.float64), np.asarray(half, dtype=np.float64)
    low, high = mean - half, mean + half
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if math.isfinite(most):
            p = (mean - least) / (most - least)
            wide = half / ((most - least) * p * (1 - p))
            below, above = (
                least + (most - least) / (1 + (1 - p) / p * np.exp(side * wide)) for side in (1, -1)
            )
        else:
            below, above = least + (mean - least) * np.exp(-half / (mean - least)), high
    inside = (least <= mean) & (mean <= most)
    low = np.where(inside & (low < least) & np.isfinite(below), below, low)
    high = np.where(inside & (high > most) & np.isfinite(above), above, high)
    cut = np.clip(low, least, most), np.clip(high, least, most)
    return np.where(inside, cut[0], low), np.where(inside, cut[1], high)


class SeedEstimate(NamedTuple):
    """A mean over seeds with its interval; the limits are NaN where the seeds give no width: for
    one seed, and where all values are equal. `f"{estimate:.3f}"` is `0.512 (0.480 to 0.544)`.
    """

    value: float
    low: float
    high: float
    n_seeds: int

    def __format__(self, form: str) -> str:
        value, low, high = (format(number, form) for number in self[:3])
        return value if math.isnan(self.low) else f"{value} ({low} to {high})"


def over_seeds(values: Sequence[float], within: Within = ANYTHING) -> SeedEstimate:
    """Mean of one number per seed and its 95% interval, which `limits` keeps inside `within`.

        mean -+ t_{n-1}(0.975) * s / sqrt(n),   s with ddof 1

    Assumes that the numbers are about normal over seeds. Raises UserError without any seed, and for
    a number that is not finite. Source: Student, Biometrika 6 (1908).
    """
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or len(x) == 0 or not np.isfinite(x).all():
        raise UserError(f"need one finite number per seed, got {list(values)}.")
    mean = float(x.mean())
    if (x == x[0]).all():
        return SeedEstimate(float(x[0]), math.nan, math.nan, len(x))
    width = t_quantile((1 + COVERAGE) / 2, len(x) - 1) * float(x.std(ddof=1)) / math.sqrt(len(x))
    low, high = limits(mean, width, within)
    return SeedEstimate(mean, float(low), float(high), len(x))


def paired_difference(
    ours: Sequence[float], theirs: Sequence[float], within: Within = ANYTHING
) -> SeedEstimate:
    """Mean of ours - theirs, entry i of both from the same seed, with its 95% interval.

    within: the range of either side. Pairing removes the seed's effect on both. Raises UserError
    for different numbers of seeds and as `over_seeds`.
    """
    if len(ours) != len(theirs):
        raise UserError(
            f"a paired difference needs the same seeds on both sides, got {len(ours)} and "
            f"{len(theirs)}; run the missing seeds."
        )
    most = within[1] - within[0]
    differences = [a - b for a, b in zip(ours, theirs, strict=True)]
    return over_seeds(differences, (-most, most) if math.isfinite(most) else ANYTHING)


def paired_p(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Two-sided p-value of the paired t-test that both sides have the same mean.

    1 for a single seed, or without any difference; 0 where all differences are equal. Raises
    UserError as `paired_difference`.
    """
    estimate = paired_difference(ours, theirs)
    differences = np.asarray(ours, dtype=np.float64) - np.asarray(theirs, dtype=np.float64)
    n = estimate.n_seeds
    if n == 1 or not differences.any():
        return 1.0
    error = float(differences.std(ddof=1)) / math.sqrt(n)
    if error == 0:
        return 0.0
    return 1 - central_probability(math.atan(abs(estimate.value) / error / math.sqrt(n - 1)), n - 1)
