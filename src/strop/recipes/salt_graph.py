"""Trajectory advantages averaged over equal transitions of a prompt's rollouts."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.credit.share_over_transitions import ShareOverTransitions
from strop.parts.advantage.credit.spread_turns import SpreadTurns
from strop.parts.rollout.play_turns import PlayTurns
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo)
def salt_graph(**parent: Any) -> Algorithm:
    """SALT: Step-level Advantage Assignment for Long-horizon Agents via Trajectory Graph.

    arXiv 2510.20022. Code: none found. Parent: grpo. Status: partial.

    Family: turns.
    In short: averages over shared transitions.
    Choose it when: only outcomes are rewarded, and good and bad episodes share many transitions,
    which deserve neither full credit nor full blame.
    Equation: A_k = mean of A_i over the rollouts i of the prompt that make the same transition
    (state, action, next state) as turn k; A_i = (R_i - mean_g) / (std_g + eps).
    Differs from the parent: turns that several rollouts share get the mean of their advantages.
    Differs once: `data.task=corridor 'data.task_config={size: 2, style: compact}'`, or where else
    rollouts of a group meet in a state (transitions/frac_shared > 0).
    Differs from the paper: inferred are exact equality of states and actions (here the
    environment's keys), that a repeat inside one rollout counts again, and that nothing is
    normalised afterwards. Without deviation (normalize_std=False) it uses dr_grpo's estimator.
    Try: num_rollouts, normalize_std.
    """
    algorithm = grpo(**parent)
    *estimate, _ = algorithm.advantage
    return dataclasses.replace(
        algorithm,
        rollout=Use(PlayTurns()),
        advantage=(*estimate, Use(ShareOverTransitions()), Use(SpreadTurns())),
    )
