"""Policy optimisation on episodes in which failed calls are replaced by their repairs."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.rollout.rewrite_failed_turns import RewriteFailedTurns
from strop.recipes._inherit import inherits
from strop.recipes.dapo import dapo


@inherits(dapo, dual_clip_c=10.0, num_minibatches=4)
def cleaner_saar(
    *,
    # Share of the rollouts in which failed turns are rewritten.
    p_roll: float = 1.0,
    # Attempts to repair a turn, at most.
    max_retry: int = 3,
    # Similarity of two calls from which the failed turn's reasoning is kept; above 1: never.
    gam: float = 0.5,
    # Text with which a call begins; empty: every turn is one.
    marker: str = "<tool_call>",
    **parent: Any,
) -> Algorithm:
    """CLEANER: Self-Purified Trajectories Boost Agentic RL (Similarity-Aware Adaptive Rollback).

    arXiv 2601.15141. Code: Tianshi-Xu/Open-CLEANER. Parent: dapo. Status: exact.

    Family: turns.
    In short: failed calls replaced by repairs.
    Choose it when: many tool calls fail by their format, the policy repairs them when it sees the
    error, and right answers should not reinforce the failures on their way.
    Equation: a turn that failed and the one that repairs it become one: the old reasoning with the
    new call if likeness(old call, new call) >= gam, else the new turn; dapo's loss on the result.
    Differs from the parent: rollouts are episodes, without the errors that were repaired; a dual
    clip; four updates a step.
    Differs from the paper: 1. the environment says that a turn failed (valid), there patterns in
    its text; 2. after an error that stays no hint is given unless rollout.hint is set; 3. a
    repair's tokens have no logp_behavior_T: ratios are to the policy at the step's start.
    Try: p_roll (0: dapo; 0.7 for a model that was not trained to reason), gam, marker (empty where
    actions are no tool calls).
    """
    rollout = RewriteFailedTurns(share=p_roll, max_tries=max_retry, likeness=gam, marker=marker)
    return dataclasses.replace(dapo(**parent), rollout=Use(rollout))
