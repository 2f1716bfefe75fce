"""Group relative policy optimisation that learns from prompts it never solves."""

import dataclasses

from strop.advantage.baseline.subtract_mean_with_imagined_best import SubtractMeanWithImaginedBest
from strop.advantage.credit.spread_evenly import SpreadEvenly
from strop.advantage.scale.divide_by_group_std import DivideByGroupStd
from strop.algorithm import Algorithm
from strop.curation.drop_solved_groups import DropSolvedGroups
from strop.part import Use
from strop.recipes.grpo import grpo


def ngrpo(
    *,
    # Imagined perfect rollouts of each group.
    n_virtual: int = 1,
    # Their reward: the largest there is.
    R_max: float = 1.0,
    eps: float = 1e-6,
    # What a group of one gets: "raw" (its reward) or "zero".
    singleton: str = "raw",
    clip_low: float = 0.16,
    clip_high: float = 0.24,
    # Rounds of sampling a step, the first included.
    max_rounds: int = 10,
    aggregation: str = "token-mean",
    num_prompts: int = 32,
    num_rollouts: int = 16,
) -> Algorithm:
    """NGRPO: Negative-enhanced Group Relative Policy Optimization.

    arXiv 2509.18851. Code: nangongrui-ngr/NGRPO. Parent: grpo. Status: exact.

    Equation: A_i = (R_i - mean') / (std' + eps), mean' and std' over the group and n_virtual
    rewards of R_max; loss = -1/N sum_t min(rho A, clip(rho, 1 - clip_low, 1 + clip_high) A).
    Differs from the parent: imagined perfect rollouts in mean and deviation, so a group that was
    never right has negative advantages; a tighter clip below; all tokens weigh the same; groups
    that are always right are replaced by fresh prompts.
    Differs from the paper: when max_rounds of sampling do not fill the batch the step goes on
    with what there is.
    Try: n_virtual, clip_low, plan.num_minibatches (4, as in the paper).
    """
    algorithm = grpo(
        clip_low=clip_low,
        clip_high=clip_high,
        aggregation=aggregation,
        num_prompts=num_prompts,
        num_rollouts=num_rollouts,
    )
    return dataclasses.replace(
        algorithm,
        curation=(Use(DropSolvedGroups(R_max, max_rounds=max_rounds)),),
        advantage=(
            Use(SubtractMeanWithImaginedBest(n_virtual, R_max, singleton)),
            Use(DivideByGroupStd(eps, num_imagined=n_virtual)),
            Use(SpreadEvenly()),
        ),
    )
