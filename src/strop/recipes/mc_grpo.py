"""Group relative policy optimisation around the median, for few rollouts."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.baseline.subtract_group_median import SubtractGroupMedian
from strop.parts.advantage.credit.spread_evenly import SpreadEvenly
from strop.parts.advantage.scale.divide_by_group_mad import DivideByGroupMad
from strop.parts.plan.split_into_minibatches import SplitIntoMinibatches
from strop.parts.selection.drop_median_rollout import DropMedianRollout
from strop.recipes._base import ESTIMATOR
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo, without=(*ESTIMATOR, "num_minibatches"), beta=0.04)
def mc_grpo(
    *,
    eps: float = 1e-3,
    floor: float = 0.0,
    nonzero_rescale: bool = False,
    group_size_plus_one: int = 0,
    num_epochs: int = 2,
    num_rollouts: int = 16,
    **parent: Any,
) -> Algorithm:
    """MC-GRPO: Median-Centered Group Relative Policy Optimization for Small-Rollout RL.

    arXiv 2601.22582. Code: lotusroot-kim/MC-GRPO. Parent: grpo. Status: exact.

    Family: baselines.
    In short: median and MAD, for few answers.
    Choose it when: only two to eight answers a prompt are affordable, where one lucky answer moves
    the mean and flips the advantages of the others.
    Equation: A_i = (R_i - med_g) / (max(MAD_g, floor) + eps) over num_rollouts + 1 rollouts, std_g
    in place of a MAD_g of 0; the median one is not trained on; loss as grpo's.
    Differs from the parent: one rollout more, median and median absolute deviation in place of mean
    and standard deviation, the median rollout is left out of loss and averages; two passes a step.
    Differs from the paper: where more than half of a group are alike the MAD is 0, and paper and
    code divide by eps: rewards 1, 0, 0, 0, 0 get 1000, 0, 0, 0, 0. Here the group's standard
    deviation is used instead, as in the parent: 2.23, 0, 0, 0, 0. floor=1e-12 is as published.
    `group_size_plus_one` is the factor's G + 1 (0: as sampled).
    Try: num_rollouts (2 to 8), floor (0.1), nonzero_rescale (the code for GSM8K).
    """
    scale = DivideByGroupMad(eps, floor, nonzero_rescale, group_size_plus_one)
    return dataclasses.replace(
        grpo(num_rollouts=num_rollouts + 1, **parent),
        advantage=(Use(SubtractGroupMedian()), Use(scale), Use(SpreadEvenly())),
        selection=(Use(DropMedianRollout()),),
        plan=Use(SplitIntoMinibatches(num_epochs=num_epochs)),
    )
