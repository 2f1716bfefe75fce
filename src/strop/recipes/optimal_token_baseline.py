"""Token-level baselines that minimise the variance of the gradient."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.baseline.subtract_optimal_token_mean import SubtractOptimalTokenMean
from strop.parts.advantage.credit.spread_evenly import SpreadEvenly
from strop.recipes._base import ESTIMATOR
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo, without=ESTIMATOR)
def optimal_token_baseline(
    *,
    # Whether nothing is subtracted at positions that only one rollout reaches.
    handle_zero_tail: bool = True,
    # Added to the sum of the weights.
    eps: float = 1e-8,
    **parent: Any,
) -> Algorithm:
    """The Optimal Token Baseline: Variance Reduction for Long-Horizon LLM-RL.

    arXiv 2602.07078. Code: none of the authors' (verl carries it). Parent: grpo. Status: exact.

    Family: credit.
    In short: least-variance token baseline.
    Choose it when: long answers give a noisy gradient, one mean for all their tokens is too coarse,
    and a critic is not wanted.
    Equation: A_{i,t} = R_i - sum_j R_j W_{j,t} / (sum_j W_{j,t} + eps) over the rollouts of the
    prompt that have a token t; W_{i,t} = sum_{s <= t} (1 - 2 pi_{i,s} + sum_v pi_{i,s}(v)^2).
    Differs from the parent: a mean for every token, weighted by the squared norm of the score so
    far, in place of the group's; no deviation.
    Differs from the paper: no. A token's position counts from the first policy token and includes
    other tokens in between: where there are any, use optimal_token_baseline_multi_turn.
    Try: num_rollouts, aggregation ("token-mean"), handle_zero_tail.
    """
    centre = SubtractOptimalTokenMean("any", handle_zero_tail, eps)
    return dataclasses.replace(grpo(**parent), advantage=(Use(SpreadEvenly()), Use(centre)))


@inherits(optimal_token_baseline)
def optimal_token_baseline_multi_turn(
    *, handle_zero_tail: bool = True, eps: float = 1e-8, **parent: Any
) -> Algorithm:
    """The Optimal Token Baseline, for rollouts with other tokens between the policy's.

    arXiv 2602.07078. Code: none of the authors' (verl carries it, tir_optimal_token_baseline).
    Parent: optimal_token_baseline. Status: exact.

    Family: credit.
    In short: token baseline over own tokens.
    Choose it when: token baselines are wanted in episodes, where an environment's replies stand
    between the policy's tokens.
    Equation: as the parent's, with t the t-th policy token of a rollout.
    Differs from the parent: an environment's tokens take no position, so that the t-th policy
    tokens of two rollouts are compared wherever they stand.
    Differs once: `data.task=calculator 'data.task_config={size: 3, style: compact}'`, where actions
    of a group differ in length (advantage/baseline_shift > 0).
    Differs from the paper: every token sees the whole outcome, in episodes too.
    Try: a task with an environment (corridor), num_rollouts, aggregation ("token-mean").
    """
    centre = SubtractOptimalTokenMean("policy", handle_zero_tail, eps)
    return dataclasses.replace(grpo(**parent), advantage=(Use(SpreadEvenly()), Use(centre)))
