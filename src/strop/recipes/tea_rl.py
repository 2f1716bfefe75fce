"""An entropy bonus that is large on tokens that are about to lose entropy."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Term, Use
from strop.parts.loss.bound.clip_both_sides import ClipBothSides
from strop.parts.loss.penalty.reward_entropy_by_covariance import RewardEntropyByCovariance
from strop.parts.reward.reward_all_or_length import RewardAllOrLength
from strop.recipes._base import average, with_policy
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo, num_rollouts=8, beta=1e-3)
def tea_rl(
    *,
    # Sum of the entropy's weights over a rollout.
    cov_alpha: float = 10.0,
    # Largest weight of a token.
    ub: float = 5.0,
    # Longest answer for which both are meant, tokens: where a run's longest is n they are scaled by
    # n / this; 0: not scaled.
    weights_length: int = 8192,
    clip_low: float = 1.0,
    clip_high: float = 1.0,
    dual_clip_c: float = 10.0,
    # Added where all reward functions give at least 1; their weights are the points of each.
    all_bonus: float = 1.0,
    # Tokens from which an answer is too long; 0: no length term (its first stage: 8192).
    long_at: int = 0,
    aggregation: str = "token-mean",
    **parent: Any,
) -> Algorithm:
    """Light-IF: Endowing LLMs with Generalizable Reasoning via Preview and Self-Checking (TEA-RL).

    arXiv 2508.03178. Code: Qihoo360/Light-IF. Parent: grpo. Status: exact.

    Family: entropy.
    In short: bonus where entropy would fall.
    Choose it when: instructions with several checkable constraints earn partial credit, and a bonus
    should reach only the tokens about to lose entropy.
    Equation: loss = grpo's - agg_t c_t H_t, c_t = min(cov_alpha softmax_i(cov_t), ub) n /
    weights_length (n: the run's longest answer), cov_t = (A_t - mean A)(logp_t - mean logp);
    reward = sum_m points_m [m holds] + all_bonus [all hold], with long_at: 2 s x if
    s >= 0.2 else -x, x = (1 - cos(pi len / long_at)) / 2, and -2 at it.
    Differs from the parent: the weighted entropy, a wide clip with a dual one, partial credit.
    Differs from the paper: this is the released function's formula (the equations were not read);
    its trainer never calls it (an undefined variable, and a coefficient of 0). c_t has no gradient,
    means are over the update, logp is that at its start; the order of prompts is left to the data.
    cov_alpha is a sum over an answer, so that on short answers the bonus would dominate: it and ub
    scale with the longest answer that the run allows, unless weights_length is 0.
    Try: cov_alpha, long_at (8192), reward.weights (0.02 to 0.2 each).
    """
    clip = ClipBothSides(clip_low, clip_high, dual_clip_c)
    algorithm = with_policy(grpo(aggregation=aggregation, **parent), objective=Use(clip))
    part = RewardEntropyByCovariance(cov_alpha, ub, weights_length)
    bonus = Term("entropy", Use(part), average(aggregation))
    dense = (Use(RewardAllOrLength(all_bonus, long_at)),) if all_bonus or long_at else ()
    return dataclasses.replace(
        algorithm,
        reward=(*algorithm.reward, *dense),
        terms=(*algorithm.terms, *((bonus,) if cov_alpha else ())),
    )
