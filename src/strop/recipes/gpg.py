"""The plain policy gradient, scaled up for rollouts without a signal."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.baseline.subtract_group_mean import SubtractGroupMean
from strop.parts.advantage.credit.spread_evenly import SpreadEvenly
from strop.parts.advantage.scale.scale_by_signal_share import ScaleBySignalShare
from strop.parts.loss.bound.follow_advantage import FollowAdvantage
from strop.recipes._base import CLIP, ESTIMATOR, with_policy
from strop.recipes._door import door
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@door(also=("gpg_loss",))
@inherits(grpo, without=(*ESTIMATOR, *CLIP, "beta"), aggregation="token-mean")
def gpg(
    *,
    # Constant that divides the advantages.
    f_norm: float = 1.0,
    # What a group of one gets: "raw" (its reward) or "zero".
    singleton: str = "raw",
    # What counts as a signal: "code" (a reward other than 0) or "paper" (an advantage other than
    # 0).
    variant: str = "code",
    **parent: Any,
) -> Algorithm:
    """GPG: A Simple and Strong Reinforcement Learning Baseline for Model Reasoning.

    arXiv 2504.02546. Code: AMAP-ML/GPG (verl carries it). Parent: grpo. Status: exact.

    Family: baselines.
    In short: plain gradient, no ratio or clip.
    Choose it when: you make one update a batch and many groups give no signal, which would shrink
    the step; the others are scaled up to compensate.
    Equation: A_i = alpha (R_i - mean_g) / f_norm, alpha = B / max(rollouts with a signal, 1) over
    the B rollouts of the step; loss = -1/N sum_t A_i logp_t.
    Differs from the parent: no ratio, no clip, no deviation; one factor for the whole step
    compensates for rollouts without a signal.
    Differs from the paper: a signal is a reward other than 0, as in verl; variant "paper" takes an
    advantage other than 0. With rewards of 0 and 1 the code's alpha is 1 / accuracy.
    Try: variant ("paper"), num_rollouts, f_norm.
    """
    chain = (
        Use(SubtractGroupMean(singleton)),
        Use(ScaleBySignalShare(f_norm, variant)),
        Use(SpreadEvenly()),
    )
    algorithm = dataclasses.replace(grpo(**parent), advantage=chain)
    return with_policy(algorithm, objective=Use(FollowAdvantage()), ratio=None)
