"""REINFORCE with the other answers of the prompt as the baseline."""

import dataclasses

from strop.advantage.baseline.subtract_kl_to_reference import SubtractKlToReference
from strop.advantage.baseline.subtract_leave_one_out_mean import SubtractLeaveOneOutMean
from strop.advantage.credit.spread_evenly import SpreadEvenly
from strop.algorithm import Algorithm
from strop.part import Use
from strop.recipes.grpo import grpo


def rloo(
    *,
    singleton: str = "raw",
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    beta: float = 0.0,
    aggregation: str = "seq-mean-token-sum",
    num_prompts: int = 32,
    num_rollouts: int = 16,
) -> Algorithm:
    """Back to Basics: Revisiting REINFORCE Style Optimization for Learning from Human Feedback.

    arXiv 2402.14740. Code: none released (verl, TRL carry it). Parent: grpo.
    Status: exact.

    Equation: A_i = R_i - mean_{j != i} R_j, R after the loss of beta sum_t (logp_old - logp_ref);
    loss = -1/B sum_i sum_t min(rho A_i, clip(rho, 1 - clip_low, 1 + clip_high) A_i).
    Differs from the parent: leave-one-out mean, no division by the deviation, tokens summed, and
    the price of leaving the reference is in the reward.
    Differs from the paper: 1. beta is 0 (paper and TRL: 0.05), which needs no reference; 2. a clip
    as in verl, without effect at one update per batch.
    Try: num_rollouts, beta (0.05), aggregation.
    """
    algorithm = grpo(
        clip_low=clip_low,
        clip_high=clip_high,
        aggregation=aggregation,
        num_prompts=num_prompts,
        num_rollouts=num_rollouts,
    )
    penalty = (Use(SubtractKlToReference(beta)),) if beta else ()
    chain = (*penalty, Use(SubtractLeaveOneOutMean(singleton)), Use(SpreadEvenly()))
    return dataclasses.replace(algorithm, advantage=chain)
