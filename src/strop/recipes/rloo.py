"""REINFORCE with the other answers of the prompt as the baseline."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.baseline.subtract_group_mean import SubtractGroupMean
from strop.parts.advantage.baseline.subtract_kl_to_reference import SubtractKlToReference
from strop.parts.advantage.credit.spread_evenly import SpreadEvenly
from strop.recipes._base import ESTIMATOR
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo, without=ESTIMATOR, aggregation="seq-mean-token-sum")
def rloo(*, singleton: str = "raw", beta: float = 0.0, **parent: Any) -> Algorithm:
    """Back to Basics: Revisiting REINFORCE Style Optimization for Learning from Human Feedback.

    arXiv 2402.14740. Code: none released (verl, TRL carry it). Parent: grpo.
    Status: exact.

    Family: baselines.
    In short: leave-one-out group mean.
    Choose it when: groups are small and the baseline should not contain the answer's own reward, or
    you want the KL penalty in the reward.
    Equation: A_i = R_i - mean_{j != i} R_j, R less beta sum_t (logp_old - logp_ref); loss = -1/B
    sum_i sum_t min(rho A_i, clip(rho, 1 - clip_low, 1 + clip_high) A_i).
    Differs from the parent: leave-one-out mean, no division by the deviation, tokens summed, and
    the KL penalty towards the reference is in the reward.
    Differs from the paper: 1. beta is 0 (paper and TRL: 0.05), which needs no reference; 2. a clip
    as in verl, without effect at one update per batch (verl's example: 4).
    Try: num_rollouts, beta (0.05), aggregation.
    """
    penalty = (Use(SubtractKlToReference(beta)),) if beta else ()
    baseline = SubtractGroupMean(singleton, leave_one_out=True)
    chain = (*penalty, Use(baseline), Use(SpreadEvenly()))
    return dataclasses.replace(grpo(**parent), advantage=chain)
