"""Group relative policy optimisation that learns from prompts it never solves."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.baseline.subtract_group_mean import SubtractGroupMean
from strop.parts.advantage.credit.spread_evenly import SpreadEvenly
from strop.parts.advantage.scale.divide_by_group_std import DivideByGroupStd
from strop.parts.curation.drop_uniform_groups import DropUniformGroups
from strop.recipes._base import ESTIMATOR
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(
    grpo,
    without=(*ESTIMATOR, "beta"),
    clip_low=0.16,
    clip_high=0.24,
    aggregation="token-mean",
    num_minibatches=4,
)
def ngrpo(
    *,
    # Virtual perfect rollouts added to each group's statistics.
    n_virtual: int = 1,
    # Their reward, the largest possible.
    R_max: float = 1.0,
    eps: float = 1e-6,
    # What a group of one gets: "raw" (its reward) or "zero".
    singleton: str = "raw",
    # Rounds of sampling a step, the first included.
    max_rounds: int = 10,
    **parent: Any,
) -> Algorithm:
    """NGRPO: Negative-enhanced Group Relative Policy Optimization.

    arXiv 2509.18851. Code: nangongrui-ngr/NGRPO. Parent: grpo. Status: exact.

    Family: baselines.
    In short: learns from all-wrong groups.
    Choose it when: most groups are all wrong and so give grpo no gradient, and their answers should
    at least become less likely.
    Equation: A_i = (R_i - mean') / (std' + eps), mean' and std' over the group and n_virtual
    rewards of R_max; loss = -1/N sum_t min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A).
    Differs from the parent: virtual perfect rollouts in mean and deviation, so a group without a
    right answer has negative advantages; a tighter clip below; all tokens weigh the same; groups
    that are always right are replaced by fresh prompts; four updates a step.
    Differs from the paper: when max_rounds of sampling do not fill the batch the step continues
    with what it has.
    Try: n_virtual, clip_low, num_minibatches.
    """
    return dataclasses.replace(
        grpo(**parent),
        curation=(Use(DropUniformGroups(max_rounds=max_rounds, keep_failed=True, best=R_max)),),
        advantage=(
            Use(SubtractGroupMean(singleton, num_imagined=n_virtual, best=R_max)),
            Use(DivideByGroupStd(eps, num_imagined=n_virtual)),
            Use(SpreadEvenly()),
        ),
    )
