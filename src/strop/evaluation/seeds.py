"""Comparing runs over seeds: means and paired differences with Student-t intervals."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from strop.support.errors import UserError
from strop.support.students_t import central_probability, t_quantile


class SeedEstimate(NamedTuple):
    """A mean over seeds with its Student-t interval; NaN limits when there is one seed."""

    value: float
    low: float
    high: float
    n_seeds: int


def over_seeds(values: Sequence[float], coverage: float = 0.95) -> SeedEstimate:
    """Mean of one number per seed and its interval.

        mean -+ t_{n-1}((1 + coverage) / 2) * s / sqrt(n),   s with ddof 1

    Assumes that the numbers are about normal over seeds. Raises UserError without any seed, for a
    number that is not finite, or a coverage outside (0, 1). Source: Student, Biometrika 6 (1908).
    """
    x = np.asarray(values, dtype=np.float64)
    if x.ndim != 1 or len(x) == 0 or not np.isfinite(x).all():
        raise UserError(f"need one finite number per seed, got {list(values)}.")
    if not 0 < coverage < 1:
        raise UserError(f"coverage = {coverage} must lie between 0 and 1.")
    mean = float(x.mean())
    if len(x) == 1:
        return SeedEstimate(mean, math.nan, math.nan, 1)
    width = t_quantile((1 + coverage) / 2, len(x) - 1) * float(x.std(ddof=1)) / math.sqrt(len(x))
    return SeedEstimate(mean, mean - width, mean + width, len(x))


def paired_difference(
    ours: Sequence[float], theirs: Sequence[float], coverage: float = 0.95
) -> SeedEstimate:
    """Mean of ours - theirs, entry i of both from the same seed, with its Student-t interval.

    Pairing removes what the seed does to both. Raises UserError for different numbers of seeds and
    as `over_seeds`.
    """
    if len(ours) != len(theirs):
        raise UserError(
            f"a paired difference needs the same seeds on both sides, got {len(ours)} and "
            f"{len(theirs)}; run the missing seeds."
        )
    return over_seeds([a - b for a, b in zip(ours, theirs, strict=True)], coverage)


def paired_p(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """Two-sided p-value of the paired t-test that both sides have one mean.

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
