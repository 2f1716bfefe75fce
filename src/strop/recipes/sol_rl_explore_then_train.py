"""Group relative policy optimisation on the best and worst seeds that an averaged policy found."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.baseline.subtract_group_mean import SubtractGroupMean
from strop.parts.advantage.credit.spread_evenly import SpreadEvenly
from strop.parts.advantage.scale.divide_by_reward_std import DivideByRewardStd
from strop.parts.control.average_explorer import AverageExplorer
from strop.parts.rollout.explore_then_regenerate import ExploreThenRegenerate
from strop.recipes._base import ESTIMATOR
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo
from strop.support.errors import UserError


@inherits(grpo, without=(*ESTIMATOR, "num_rollouts"))
def sol_rl_explore_then_train(
    *,
    # Answers of a prompt that are tried.
    N: int = 96,
    # The best and worst of these, whose seeds are regenerated and trained on.
    K: int = 24,
    # Added to the deviation of all rewards.
    eps: float = 1e-4,
    # Decay of the averaged policy that explores; 0: the newest policy explores.
    decay: float = 0.9,
    **parent: Any,
) -> Algorithm:
    """FP4 Explore, BF16 Train: Diffusion Reinforcement Learning via Efficient Rollout Scaling.

    arXiv 2604.06916. Code: NVlabs/Sana (sol_rl). Parent: grpo. Status: partial.

    Family: draws.
    In short: averaged policy explores seeds.
    Choose it when: most answers of a prompt get equal rewards, sampling is cheap compared with
    training, and what an averaged policy finds still holds for the newest.
    Equation: N answers of the average e <- decay e + (1 - decay) theta; the K/2 best and K/2 worst
    seeds are answered again by the newest policy; A_i = (R_i - mean_g) / (std of all R + eps) over
    these answers; grpo's loss.
    Differs from the parent: most answers are only tried; groups are chosen for their extremes, so
    their mean does not estimate the prompt's.
    Differs from the paper: it trains diffusion models. 1. the average that explores is neither
    quantised nor takes fewer steps, and costs as much as the policy; 2. a seed repeats an answer
    only as far as the policies agree; 3. grpo's clipped loss, there DiffusionNFT's of velocities,
    which reads the average too; 4. its decay was not read.
    Try: decay (0.5), N with K.
    """
    if K > N:
        raise UserError(
            f"sol_rl_explore_then_train: K={K} answers cannot be chosen of N={N}: lower K"
        )
    algorithm = grpo(num_rollouts=N, **parent)
    return dataclasses.replace(
        algorithm,
        control=(*algorithm.control, Use(AverageExplorer(decay))),
        rollout=Use(ExploreThenRegenerate(keep=K)),
        advantage=(Use(SubtractGroupMean()), Use(DivideByRewardStd(eps)), Use(SpreadEvenly())),
    )
