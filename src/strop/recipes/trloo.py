"""Leave-one-out advantages per turn."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.baseline.centre_turns import CentreTurns
from strop.parts.advantage.credit.discount_turn_rewards import DiscountTurnRewards
from strop.parts.advantage.credit.spread_turns import SpreadTurns
from strop.parts.rollout.play_turns import PlayTurns
from strop.recipes._base import ESTIMATOR
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo, without=ESTIMATOR, clip_high=0.28, aggregation="seq-mean-token-sum")
def trloo(
    *,
    # Discount of a turn.
    gamma: float = 1.0,
    **parent: Any,
) -> Algorithm:
    """Dr. Kernel: Reinforcement Learning Done Right for Triton Kernel Generations (advantage).

    arXiv 2602.05885. Code: hkust-nlp/KernelGYM. Parent: grpo. Status: exact.

    Family: turns.
    In short: leave-one-out mean per turn.
    Choose it when: every turn has a reward of its own (tests after each repair, say) and should be
    compared with the same turn of other rollouts.
    Equation: A_{i,k} = Ret_{i,k} - mean_{j != i} Ret_{j,k} over the rollouts of the prompt that
    have a turn k, Ret_{i,k} = sum_{k' >= k} gamma^(k' - k) r_{i,k'}; a turn without others: Ret.
    Differs from the parent: every turn has its own advantage, relative to the mean of the others;
    no deviation; tokens are summed; a wider clip above.
    Differs from the paper: its rejection of rollouts is a part of its own (recipe mrs).
    Try: gamma, num_rollouts, clip_high.
    """
    turns = Use(CentreTurns("index", leave_one_out=True, singleton="raw"))
    return dataclasses.replace(
        grpo(**parent),
        rollout=Use(PlayTurns()),
        advantage=(Use(DiscountTurnRewards(gamma)), turns, Use(SpreadTurns())),
    )
