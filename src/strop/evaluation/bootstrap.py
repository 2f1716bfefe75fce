"""Percentile bootstrap over prompts, the same resamples for every statistic."""

from collections.abc import Mapping

import numpy as np

from strop.evaluation.calibration import Statistic
from strop.evaluation.samples import Estimate, Floats
from strop.support.errors import UserError

CHUNK = 4_000_000  # numbers held at once


def bootstrap(
    statistics: Mapping[str, Statistic],
    num_prompts: int,
    *,
    coverage: float = 0.95,
    num_resamples: int = 2000,
    seed: int = 0,
    num_rollouts: int = 0,
) -> dict[str, Estimate]:
    """Each statistic with its percentile interval when prompts are drawn again with replacement.

        low, high = quantiles (1 - coverage) / 2 and (1 + coverage) / 2 of statistic(counts_r)
        counts_r ~ Multinomial(P; 1/P, ..., 1/P)

    Prompts are resampled and never rollouts, because rollouts of a prompt are not independent
    evidence about the set. Resamples on which a statistic is undefined (NaN) are left out of its
    quantiles; with one prompt there is no interval (NaN). `num_rollouts` only sizes the chunks.
    Raises UserError for a coverage outside (0, 1), fewer than 100 resamples or no prompt.
    Source: Efron and Tibshirani, An Introduction to the Bootstrap (1993), sec. 13.3.
    """
    if not 0 < coverage < 1 or num_resamples < 100 or num_prompts < 1:
        raise UserError(
            f"a bootstrap needs a coverage between 0 and 1 (got {coverage}), at least 100 "
            f"resamples (got {num_resamples}) and a prompt (got {num_prompts})."
        )
    ones_1P = np.ones((1, num_prompts))
    values = {name: float(of(ones_1P)[0]) for name, of in statistics.items()}
    if num_prompts == 1:
        return {name: Estimate(value, np.nan, np.nan, 1) for name, value in values.items()}
    drawn: dict[str, list[Floats]] = {name: [] for name in statistics}
    rng = np.random.default_rng(seed)
    chunk = max(1, CHUNK // max(num_prompts, num_rollouts))
    for start in range(0, num_resamples, chunk):
        rows = min(chunk, num_resamples - start)
        counts_RP = rng.multinomial(num_prompts, np.full(num_prompts, 1 / num_prompts), size=rows)
        for name, of in statistics.items():
            drawn[name].append(of(counts_RP.astype(np.float64)))
    return {
        name: Estimate(value, *_quantiles(np.concatenate(drawn[name]), coverage), num_prompts)
        for name, value in values.items()
    }


def _quantiles(value_R: Floats, coverage: float) -> tuple[float, float]:
    defined = value_R[~np.isnan(value_R)]
    if len(defined) == 0:
        return np.nan, np.nan
    low, high = np.quantile(defined, [(1 - coverage) / 2, (1 + coverage) / 2])
    return float(low), float(high)
