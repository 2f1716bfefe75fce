"""Return and risk of the top k that an early or cheap ranking of candidates picks.

Candidates are recipes, checkpoints or settings; the estimate is a score that costs little, such as
that after a tenth of the steps; the value is the final score.
"""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from strop.evaluation.samples import Floats
from strop.support.errors import UserError


class TopK(NamedTuple):
    """The values of the k candidates with the highest estimates.

    kth: of the last one taken; deviation: sqrt(mean (value - mean)^2); sharpe_ratio: (best -
    baseline) / deviation, infinite or not a number where all values are equal, so look also at
    `best` and `worst`; below_baseline: share of the k.
    """

    k: int
    best: float
    worst: float
    mean: float
    kth: float
    deviation: float
    sharpe_ratio: float
    below_baseline: float


def sharpe_ratio_at_k(estimate_C: ArrayLike, value_C: ArrayLike, baseline: float, k: int) -> TopK:
    """Return and risk of trying the k candidates that an estimate ranks highest.

        SharpeRatio@k = (max over top k of value - baseline) / std over top k of value

    estimate_C, value_C: [C]. Among equal estimates the first is taken first. The deviation is the
    biased one of the paper; its code divides by k - 1 and sets a negative numerator to 0. Raises
    UserError for different numbers of values and estimates, a number that is not finite, and a k
    outside 1 to C. Source: arXiv 2311.18207.
    """
    estimates, values = _checked(estimate_C, value_C)
    if not 1 <= k <= len(values):
        raise UserError(f"k is {k}: there are {len(values)} candidates")
    top_K = values[np.argsort(-estimates, kind="stable")[:k]]
    best = float(top_K.max())
    deviation = float(top_K.std()) if np.ptp(top_K) else 0.0  # the mean of equal values is rounded
    gain = best - baseline
    ratio = gain / deviation if deviation else math.copysign(math.inf, gain) if gain else math.nan
    return TopK(
        k, best, float(top_K.min()), float(top_K.mean()), float(top_K[-1]), deviation, ratio,
        float((top_K < baseline).mean()),
    )  # fmt: skip


def rank_correlation(estimate_C: ArrayLike, value_C: ArrayLike) -> float:
    """Spearman's correlation: that of the ranks, where equal values have their mean rank.

    NaN where all estimates or all values are equal. Raises UserError as `sharpe_ratio_at_k`.
    """
    estimates, values = (_ranks(each) for each in _checked(estimate_C, value_C))
    a, b = estimates - estimates.mean(), values - values.mean()
    size = math.sqrt(float(a @ a) * float(b @ b))
    return float(a @ b) / size if size else math.nan


def _ranks(x: Floats) -> Floats:
    below = (x[None, :] < x[:, None]).sum(1)
    equal = (x[None, :] == x[:, None]).sum(1)
    return np.asarray(below + (equal - 1) / 2, dtype=np.float64)


def _checked(estimate_C: ArrayLike, value_C: ArrayLike) -> tuple[Floats, Floats]:
    estimates = np.asarray(estimate_C, dtype=np.float64)
    values = np.asarray(value_C, dtype=np.float64)
    if estimates.shape != values.shape or estimates.ndim != 1:
        raise UserError(
            f"give one estimate and one value of each candidate, not shapes {estimates.shape} and "
            f"{values.shape}"
        )
    if not (np.isfinite(estimates).all() and np.isfinite(values).all()):
        raise UserError("an estimate or a value is not finite: leave that candidate out")
    return estimates, values
