"""Entropy along a scheduled band, held by switching the estimator outside the band."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.method.schedule import EntropyTarget, Linear
from strop.parts.advantage.baseline.learn_one_sign_outside_entropy_band import (
    LearnOneSignOutsideEntropyBand,
)
from strop.parts.reward.rescale_reward import RescaleReward
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(
    grpo,
    without=("std", "normalize_std", "singleton"),
    beta=1e-3,
    aggregation="token-mean",
    num_minibatches=4,
)
def entrocraft_code_variant(
    *,
    # Lower edge of the band, nats.
    h_low: EntropyTarget = Linear(0.6, 0.4),  # noqa: B008 (frozen)
    # Upper edge of the band, nats.
    h_high: EntropyTarget = Linear(0.7, 0.5),  # noqa: B008 (frozen)
    # Factor on positive rewards below the band.
    positive_weight: float = 0.0,
    # reward <- reward_scale * reward + reward_shift; use 1 and 0 where it is -1 or 1 already.
    reward_scale: float = 2.0,
    reward_shift: float = -1.0,
    **parent: Any,
) -> Algorithm:
    """Addressing Performance Saturation for LLM RL via Precise Entropy Curve Control (released).

    arXiv 2604.26326. Code: lblaoke/entrocraft (grpo_range and relatives). Parent: grpo.
    Status: exact.

    Family: entropy.
    In short: switches estimator outside band.
    Choose it when: you reproduce what Entrocraft's repository runs, or its baselines raftpp, nsr
    and w_reinforce, rather than the paper's rule.
    Equation: A_i = max(R_i, 0) if H > h_high; R_i (times positive_weight if positive) if
    H < h_low; else (R_i - mean_g) / (std_g + eps); loss as the parent's, all tokens alike.
    Differs from the parent: outside the entropy band, raw rewards of one sign are the advantages;
    four updates a step.
    Differs from the paper: this is what its repository runs; entrocraft is the paper's rule.
    Rewards of 0 and 1 are rescaled to -1 and 1 (there they already are). The repository's band is
    inverted; here it is the paper's. h_high = -inf is its raftpp, h_low = inf its nsr, that with
    positive_weight 0.1 w_reinforce.
    Try: h_low and h_high (schedules or numbers), positive_weight (0.1), reward_scale.
    """
    algorithm = grpo(**parent)
    *chain, credit = algorithm.advantage
    band = LearnOneSignOutsideEntropyBand(h_low, h_high, positive_weight)
    return dataclasses.replace(
        algorithm,
        reward=(*algorithm.reward, Use(RescaleReward(reward_scale, reward_shift))),
        advantage=(*chain, Use(band), credit),
    )
