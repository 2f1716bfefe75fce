"""Exact on-policy updates with the baseline of least variance."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.baseline.subtract_length_weighted_mean import SubtractLengthWeightedMean
from strop.parts.advantage.credit.spread_evenly import SpreadEvenly
from strop.parts.loss.bound.follow_advantage import FollowAdvantage
from strop.recipes._base import CLIP, ESTIMATOR, with_policy
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo, without=(*ESTIMATOR, *CLIP, "beta"), aggregation="token-mean")
def opo(
    *,
    # What a group of one gets: "raw" (its reward) or "zero".
    singleton: str = "raw",
    **parent: Any,
) -> Algorithm:
    """On-Policy RL with Optimal Reward Baseline.

    arXiv 2505.23585. Code: microsoft/LMOps (verl carries it). Parent: grpo. Status: exact.

    Family: baselines.
    In short: length-weighted mean baseline.
    Choose it when: you make exactly one update a batch and lengths differ much within a group,
    since long answers move the gradient most and should decide the mean.
    Equation: A_i = R_i - sum_j T_j R_j / sum_j T_j over the group, T the number of policy tokens;
    loss = -1/N sum_t A_i logp_t.
    Differs from the parent: the mean weights long answers more, no division by the deviation, no
    ratio and no clip, all tokens weigh the same.
    Differs from the paper: no. One update a step, without penalty or bonus, is part of the method:
    leave plan.num_minibatches at 1.
    Try: num_rollouts, aggregation, singleton.
    """
    chain = (Use(SubtractLengthWeightedMean(singleton)), Use(SpreadEvenly()))
    algorithm = dataclasses.replace(grpo(**parent), advantage=chain)
    return with_policy(algorithm, objective=Use(FollowAdvantage()), ratio=None)
