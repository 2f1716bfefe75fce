"""Episodes that branch where the policy grew unsure, fewer the more rounds in a row brought one."""

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
    # Rollouts of a prompt that begin at once; the others branch from them.
    initial_rollouts: int = 8,
    # One more than the branches that may begin after a turn of an episode.
    beam: int = 2,
    # Level that the draw of a branch has to come up to.
    branch_probability: float = 0.5,
    # What a rise in a turn's entropy adds to the draw.
    w: float = 0.2,
    # Share of the draw that each round in a row with a new rollout takes.
    penalty: float = 0.05,
    # Whether a look at each prompt divides its rollouts, in place of initial_rollouts.
    pre_monitoring: bool = False,
    # How strongly the entropies decide about that (the paper's beta).
    sharpness: float = 0.5,
    **parent: Any,
) -> Algorithm:
    """Agentic Entropy-Balanced Policy Optimization (AEPO), its rollouts and its update.

    arXiv 2510.14545. Code: RUC-NLPIR/ARPO (by a public fork). Parent: aepo_agentic_loss.
    Status: partial.

    Family: turns.
    In short: balanced branching of episodes.
    Choose it when: episodes that branch by entropy alone come to share one or two beginnings, and
    open tokens behind a tool's reply should go on learning past the clip.
    Equation: branch if (u + w (H - H_first)) (1 - penalty l) >= branch_probability, u uniform, l
    the rounds in a row that brought the prompt a rollout; with pre_monitoring n sigmoid(sharpness
    (H_prompt - H_turns)) + 1 of n rollouts begin at once; aepo_agentic_loss's loss.
    Differs from the parent: episodes; part of a group shares beginnings with others of it.
    Differs from the paper: 1. l starts anew after a round without a new rollout, as in the code,
    of the prompt's own rounds (there of the batch's); 2. the level is compared with a draw, as in
    the code; 3. the update is aepo_agentic_loss's, with what is inferred there.
    Try: penalty (0 with w: arpo's branches), pre_monitoring, initial_rollouts.
    """
    rollout = BranchAfterTurns(
        initial=initial_rollouts,
        branching=(beam, w, branch_probability),
        penalty=penalty,
        monitor=sharpness if pre_monitoring else 0.0,
    )
    return dataclasses.replace(aepo_agentic_loss(**parent), rollout=Use(rollout))
