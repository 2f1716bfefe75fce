"""Episodes that branch where entropy rose, less often the more rounds in a row brought a branch."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.rollout.branch_after_turns import BranchAfterTurns
from strop.recipes._inherit import inherits
from strop.recipes.aepo_agentic_loss import aepo_agentic_loss


@inherits(aepo_agentic_loss)
def aepo_agentic_rollout(
    *,
    # Rollouts of a prompt that start at once; the others branch from them.
    initial_rollouts: int = 8,
    # One more than the branches allowed after a turn of an episode.
    beam: int = 2,
    # Threshold that the random draw of a branch must reach.
    branch_probability: float = 0.5,
    # What a rise in a turn's entropy adds to the draw.
    w: float = 0.2,
    # Share taken off the draw for each round in a row that brought a new rollout.
    penalty: float = 0.05,
    # Whether a discarded trial of each prompt decides how many rollouts start, in place of
    # initial_rollouts.
    pre_monitoring: bool = False,
    # How strongly the entropies decide this (the paper's beta).
    sharpness: float = 0.5,
    **parent: Any,
) -> Algorithm:
    """Agentic Entropy-Balanced Policy Optimization (AEPO), its rollouts and its update.

    arXiv 2510.14545. Code: RUC-NLPIR/ARPO (by a public fork). Parent: aepo_agentic_loss.
    Status: partial.

    Family: turns.
    In short: entropy branching with a penalty.
    Choose it when: branching by entropy alone leaves most episodes with one or two shared prefixes,
    and high-entropy tokens after a tool's reply should keep a gradient above the clip.
    Equation: branch if (u + w (H - H_first)) (1 - penalty l) >= branch_probability, u uniform, l
    the rounds in a row that brought the prompt a rollout; with pre_monitoring n sigmoid(sharpness
    (H_prompt - H_turns)) + 1 of n rollouts start at once; aepo_agentic_loss's loss.
    Differs from the parent: rollouts are episodes; some of a group share a prefix with others of
    it.
    Differs from the paper: 1. l is reset after a round without a new rollout, as in the code, and
    counts the prompt's own rounds (there the batch's); 2. the threshold is compared with a random
    draw, as in the code; 3. the update is aepo_agentic_loss's, with what is inferred there.
    Try: penalty (0 with w: arpo's branches), pre_monitoring, initial_rollouts.
    """
    rollout = BranchAfterTurns(
        initial=initial_rollouts,
        branching=(beam, w, branch_probability),
        penalty=penalty,
        monitor=sharpness if pre_monitoring else 0.0,
    )
    return dataclasses.replace(aepo_agentic_loss(**parent), rollout=Use(rollout))
