"""Diagnostics by turn: limits from the lengths of episodes, and drift from a reference."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from strop.batch import segments
from strop.batch.batch import Batch


def turn_limits(turns_B: ArrayLike, percentiles: Sequence[float] = (25, 50, 75)) -> list[int]:
    """Turn limits from the episodes of a run without a limit: percentiles, rounded up.

    turns_B [B]: turns of each episode, for `rollout.max_turns` and, as the difference of two of
    them, `rollout.extension`. Percentiles are linear between neighbours. Raises ValueError without
    episodes. Source: arXiv 2510.16786.
    """
    turns = np.asarray(turns_B, dtype=np.float64)
    if turns.size == 0:
        raise ValueError("no episodes to take percentiles of")
    return [int(np.ceil(value - 1e-9)) for value in np.percentile(turns, list(percentiles))]


def full_kl(logq_TV: Tensor, logp_TV: Tensor) -> Tensor:
    """KL(q || p) [T] between next-token distributions over one vocabulary, nats.

        KL_t = sum_v q_v (log q_v - log p_v)

    log-probabilities [T, V]; a token with q_v = 0 adds nothing.
    """
    inside = logq_TV.exp() * (logq_TV - logp_TV)
    return torch.where(logq_TV > -torch.inf, inside, 0).sum(-1)


def sampled_kl(logq_T: Tensor, logp_T: Tensor) -> Tensor:
    """Estimate [T] of KL(q || p) from tokens that q sampled: log q - log p, unbiased, nats."""
    return logq_T - logp_T


def turn_drift(batch: Batch, kl_T: Tensor) -> Tensor:
    """Mean divergence at each turn index, D [num_turns], nats; NaN where no turn has a token.

        D_k = mean over the rollouts' turns k of the mean of kl_T over the turn's policy tokens

    kl_T [T]: from `full_kl` or `sampled_kl`, anything outside mask_T. Source: arXiv 2510.07777 (the
    mean over the tokens of a turn is inferred).
    """
    turn_T, mask_T, index_K = batch["turn_T"], batch["mask_T"], batch["index_K"]
    num_turns = batch.size("K")
    mean_K = segments.mean(kl_T.double(), turn_T, num_turns, mask_T)
    has_K = segments.count(turn_T, num_turns, mask_T) > 0
    num = segments.count_of(index_K)
    known = segments.count(index_K, num, has_K) > 0
    return torch.where(known, segments.mean(mean_K, index_K, num, has_K), torch.nan)


class Equilibrium(NamedTuple):
    """The level `drift` and the `rate` of return to it: D_{k+1} - D_k = rate (drift - D_k)."""

    rate: float
    drift: float


def fit_equilibrium(drift_EK: ArrayLike) -> Equilibrium:
    """The level where drift settles, and how fast, by least squares over all pairs of turns.

        D_{k+1} - D_k = lambda (D* - D_k) + noise;  slope = -lambda, intercept = lambda D*

    drift_EK [E, K] or [K]: D by turn of one or many episodes; NaN marks missing turns.
    `drift` is NaN where the rate is 0. Raises ValueError unless two steps start at
    different levels. Source: arXiv 2510.07777 (the linear fit is inferred).
    """
    drift = np.atleast_2d(np.asarray(drift_EK, dtype=np.float64))
    start, change = drift[:, :-1].ravel(), np.diff(drift, axis=1).ravel()
    known = ~np.isnan(change)
    start, change = start[known], change[known]
    if len(start) < 2 or np.ptp(start) == 0:
        raise ValueError("the fit needs two turns at different levels that are followed by another")
    centred = start - start.mean()
    slope = float(centred @ change / (centred @ centred))
    level = float(start.mean() - change.mean() / slope) if slope else float("nan")
    return Equilibrium(-slope, level)
