"""Turn-level credit for dialogues: returns against the same turn, progress against the batch."""

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


@inherits(grpo, without=(*ESTIMATOR, "beta"))
def mapo(
    *,
    # Weight of a turn's return against the same turn of the group's other rollouts.
    alpha: float = 0.5,
    # Weight of a turn's own reward against all turns of the pool.
    beta: float = 0.5,
    # Discount of a turn.
    gamma: float = 1.0,
    # "group" (turns of the prompt) or "batch" (all turns of the step).
    pool: str = "group",
    std: str = "biased",
    eps: float = 1e-8,
    **parent: Any,
) -> Algorithm:
    """MAPO: Mixed Advantage Policy Optimization for Long-Horizon Multi-Turn Dialogue.

    arXiv 2603.06194. Code: none found. Parent: grpo. Status: partial.

    Family: turns.
    In short: same-turn returns and progress.
    Choose it when: after each turn of a dialogue the environment or a judge scores the progress,
    and both that progress and later returns should count.
    Equation: A_{i,k} = alpha z(Ret_{i,k}; same turn of the group) + beta z(r_{i,k}; pool),
    Ret_{i,k} = sum_{k' >= k} gamma^(k' - k) r_{i,k'}; the environment's reward of a turn is what it
    moved the user's state, r_k = phi_{k-1} - phi_k.
    Differs from the parent: every turn has its own advantage, a mixture of two comparisons.
    Differs from the paper: inferred are gamma (1), the biased deviation and eps (from another
    implementation), and the pool, which is the group in its later version and "batch" in its first.
    beta is the mixture's, so a KL penalty towards the reference has to be added as a term.
    Try: alpha (0.5 to 0.7), beta, pool.
    """
    progress = (("values_K", "reward_K"), ("advantage_K", "second_advantage_K"))
    return dataclasses.replace(
        grpo(**parent),
        rollout=Use(PlayTurns()),
        advantage=(
            Use(DiscountTurnRewards(gamma)),
            Use(CentreTurns("index", scale=std, eps=eps)),
            Use(CentreTurns(pool, scale=std, eps=eps), columns=progress),
            Use(SpreadTurns(alpha, second_weight=beta)),
        ),
    )
