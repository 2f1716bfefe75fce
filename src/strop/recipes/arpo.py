"""Group relative policy optimisation over episodes that branch where entropy rose."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.credit.average_shared_prefixes import AverageSharedPrefixes
from strop.parts.advantage.credit.spread_evenly import SpreadEvenly
from strop.parts.rollout.branch_after_turns import BranchAfterTurns
from strop.recipes._base import check_choice
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo

CREDIT: dict[str, Any] = {"soft": SpreadEvenly(), "hard": AverageSharedPrefixes()}


@inherits(grpo)
def arpo(
    *,
    # Rollouts of a prompt that start at once; the others branch from them.
    N: int = 8,
    # One more than the branches allowed after a turn of an episode.
    beam: int = 2,
    # What a rise in a turn's entropy adds to the branching probability of 0.5.
    w: float = 0.2,
    # Advantage of a shared prefix: each rollout's own ("soft") or their mean ("hard").
    advantage: str = "soft",
    **parent: Any,
) -> Algorithm:
    """Agentic Reinforced Policy Optimization.

    arXiv 2507.19849. Code: RUC-NLPIR/ARPO. Parent: grpo. Status: exact.

    Family: turns.
    In short: branches where entropy rises.
    Choose it when: tool calls or long first turns cost most of an episode, and the policy is less
    certain after a tool's reply than before it.
    Equation: after each turn an episode branches with probability clip(0.5 + w (H - H_first), 0, 1)
    while a prompt has fewer than num_rollouts; H = sum of -p ln p / ln V over the turn's first 20
    tokens and their 10 likeliest; grpo's loss.
    Differs from the parent: rollouts are episodes; some of a group share a prefix with others of
    it.
    Differs from the paper: 1. its constants are the code's; 2. as there, the turn before a tool's
    reply decides, so that the first one branches with probability 0.5; 3. its reward (F1 of the
    answer, 0.1 for both tools, -1 for a wrong format) is the environment's; 4. its code takes the
    mean over all tokens (aggregation="token-mean").
    Try: N (num_rollouts: no branches), w, advantage ("hard").
    """
    check_choice("arpo", CREDIT, advantage=advantage)
    algorithm = grpo(**parent)
    return dataclasses.replace(
        algorithm,
        rollout=Use(BranchAfterTurns(initial=N, branching=(beam, w, 0.5))),
        advantage=(*algorithm.advantage[:-1], Use(CREDIT[advantage])),
    )
