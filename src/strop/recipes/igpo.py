"""Turns rewarded by how much they raise the probability of the right answer."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.baseline.centre_turns import CentreTurns
from strop.parts.advantage.credit.centre_tokens_by_position import CentreTokensByPosition
from strop.parts.advantage.credit.discount_turn_rewards import DiscountTurnRewards
from strop.parts.advantage.credit.spread_turns import SpreadTurns
from strop.parts.probe.measure_answer_gain import MeasureAnswerGain
from strop.parts.rollout.play_turns import PlayTurns
from strop.recipes._base import ESTIMATOR, check_choice
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo

CENTRES = {
    "paper": CentreTurns("group", scale="unbiased", singleton="raw"),
    "separate": CentreTurns("last", scale="biased", singleton="zero"),
}


@inherits(grpo, without=ESTIMATOR, aggregation="token-mean")
def igpo(
    *,
    # "paper" (all rewards of the group together), "separate" (gains and outcomes separately) or
    # "code".
    variant: str = "paper",
    # Discount of a turn; of a token in the variant "code".
    gamma: float = 1.0,
    # Whether sums end at the environment's tokens; only in variant "code".
    reset_at_masked: bool = True,
    # Text between a turn and the right answer, such as "</think><answer>".
    opening: str = "",
    **parent: Any,
) -> Algorithm:
    """Information Gain-based Policy Optimization: A Simple and Effective Approach for Multi-Turn
    LLM Agents.

    arXiv 2510.14967. Code: GuoqingWang1/IGPO. Parent: grpo. Status: partial.

    Family: turns.
    In short: turn reward by answer likelihood.
    Choose it when: agents search for a known answer and whole groups fail; each turn is rewarded by
    how much likelier it made that answer.
    Equation: A~_{i,k} = sum_{j >= k} gamma^(j - k) z(r_{i,j}); r_{i,k} = P_{i,k} - P_{i,k-1}, the
    gain in probability of the reference answer, the outcome for the last turn; z over all turns of
    the group.
    Differs from the parent: every turn has a reward, so groups that fail as a whole still give a
    signal; all tokens weigh the same.
    Differs from the paper: gamma is inferred (1). "separate" normalises gains and outcomes
    separately (from another implementation), "code" subtracts from rewards to go the group's mean
    at the same position. The outcome is the environment's (F1 there). The KL penalty is off unless
    beta > 0 (0.001 there), as is the entropy bonus.
    Try: variant, gamma (0.95 to 1), opening.
    """
    check_choice("igpo", (*CENTRES, "code"), variant=variant)
    chain: tuple[Use, ...] = (Use(CentreTokensByPosition(gamma, reset_at_masked)),)
    if variant != "code":
        renamed = (("values_K", "advantage_K"), ("return_K", "advantage_K"))
        chain = (
            Use(CENTRES[variant], columns=(("values_K", "reward_K"),)),
            Use(DiscountTurnRewards(gamma), columns=renamed),
            Use(SpreadTurns()),
        )
    algorithm = grpo(**parent)
    return dataclasses.replace(
        algorithm,
        rollout=Use(PlayTurns()),
        probes=(Use(MeasureAnswerGain(opening)),),
        advantage=chain,
    )
