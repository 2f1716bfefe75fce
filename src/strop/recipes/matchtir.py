"""Turns rewarded by matching tool calls, compared as rollouts and turn by turn."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.baseline.centre_turns import CentreTurns
from strop.parts.advantage.baseline.subtract_group_mean import SubtractGroupMean
from strop.parts.advantage.credit.discount_turn_rewards import DiscountTurnRewards
from strop.parts.advantage.credit.spread_turns import SpreadTurns
from strop.parts.advantage.scale.divide_by_group_std import DivideByGroupStd
from strop.parts.reward.match_reference_calls import MatchReferenceCalls
from strop.parts.rollout.play_turns import PlayTurns
from strop.recipes._base import ESTIMATOR, check_choice
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo

WEIGHTS = {"mean": 0.5, "sum": 1.0}


@inherits(grpo, without=ESTIMATOR, num_minibatches=8)
def matchtir(
    *,
    # Discount of a turn.
    gamma: float = 0.9,
    # "mean" (the code) or "sum" (the paper's figure) of the rollout's and the turn's advantage.
    fusion: str = "mean",
    # How calls are matched with reference calls: "exact", "greedy" or "soft".
    matching: str = "exact",
    # Reward of a call without a matching reference.
    unmatched: float = 0.0,
    eps: float = 1e-6,
    **parent: Any,
) -> Algorithm:
    """MatchTIR: Fine-Grained Supervision for Tool-Integrated Reasoning via Bipartite Matching.

    arXiv 2601.10712. Code: quchangle1/MatchTIR. Parent: grpo. Status: exact.

    Family: turns.
    In short: rewards matching reference calls.
    Choose it when: the data has reference tool calls, and a turn should be rewarded for the right
    tool with the right arguments.
    Equation: A = (A_i + B_{i,k}) / 2; A_i = (sum_k r_{i,k} - mean_g) / (std_g + eps); B the same of
    D_{i,k} = r_{i,k} + gamma D_{i,k+1} over the rollouts of the prompt that have a turn k; r is the
    mean similarity of the turn's tool calls to the reference calls that they are matched with.
    Differs from the parent: turns are rewarded for their calls and have advantages of their own;
    eight updates a step.
    Differs from the paper: a turn without calls keeps the environment's reward (F1 of the answer
    there). The KL penalty is off unless beta > 0 (0.001 there), as is the entropy bonus of 0.001.
    Try: fusion, matching ("greedy" is the code's), gamma, unmatched (-0.5).
    """
    check_choice("matchtir", WEIGHTS, fusion=fusion)
    algorithm = grpo(**parent)
    weight = WEIGHTS[fusion]
    return dataclasses.replace(
        algorithm,
        rollout=Use(PlayTurns()),
        reward=(*algorithm.reward, Use(MatchReferenceCalls(matching, unmatched))),
        advantage=(
            Use(SubtractGroupMean()),
            Use(DivideByGroupStd(eps)),
            Use(DiscountTurnRewards(gamma)),
            Use(CentreTurns("index", scale="unbiased", eps=eps, singleton="raw")),
            Use(SpreadTurns(weight, rollout_weight=weight)),
        ),
    )
