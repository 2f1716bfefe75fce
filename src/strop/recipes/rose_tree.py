"""Grows answers out of each other where meanings diverge, and credits the segments between."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.credit.credit_between_forks import CreditBetweenForks
from strop.parts.advantage.weight.favour_short_right_answers import FavourShortRightAnswers
from strop.parts.curation.drop_uniform_groups import DropUniformGroups
from strop.parts.rollout.branch_at_uncertainty import BranchAtUncertainty
from strop.recipes._door import door
from strop.recipes._inherit import inherits
from strop.recipes.dr_grpo import dr_grpo


@door(tensors={"branch_pos": ("fork_at", None)})
@inherits(dr_grpo, without=("eps", "normalize_std", "singleton"), beta=1e-3, num_rollouts=8)
def rose_tree(
    *,
    # Strength of the preference for short right answers; 0: none.
    alpha: float = 1.0,
    # Probability of starting an answer at the prompt rather than inside another one.
    eps_explore: float = 0.5,
    # "dissimilarity", "similarity" (paper), "off_diagonal" (its code) or "entropy".
    measure: str = "dissimilarity",
    # Rounds of sampling a step until enough groups have answers with different outcomes.
    max_rounds: int = 10,
    **parent: Any,
) -> Algorithm:
    """ROSE: Reinforced Efficient Reasoning via Semantically Diverse Exploration.

    arXiv 2601.05053, sec. 3. Code: ZiqiZhao1/ROSE-rl. Parent: dr_grpo. Status: exact.

    Family: credit.
    In short: branches where meanings diverge.
    Choose it when: the answers of a group are near copies; new ones should branch where the next
    token's meaning is most uncertain, and long ones should lose a little.
    Equation: A_t = V(b_j) - V(b_{j-1}) for b_{j-1} <= t < b_j, V(b) = mean reward of the answers
    that go through b; right answers longer than the shortest: A_t -= |A_t| (1 - (l_s / l)^alpha).
    Differs from the parent: answers branch off each other where the next tokens' meanings differ
    most, advantages are per segment between branchings, right but long answers get less, groups
    with equal outcomes are replaced.
    Differs from the paper: 1. the branching metric takes 1 - similarity, as the printed one prefers
    places where the policy is certain ("similarity" is the printed one); 2. nodes are distinguished
    by their prefix, unlike in the code; 3. right means reward >= 1.
    Try: alpha (0.5 to 3), eps_explore (1: independent answers), measure ("entropy").
    """
    chain = (CreditBetweenForks(), *((FavourShortRightAnswers(alpha),) if alpha else ()))
    return dataclasses.replace(
        dr_grpo(**parent),
        rollout=Use(BranchAtUncertainty(explore=eps_explore, measure=measure)),
        curation=(Use(DropUniformGroups(max_rounds=max_rounds)),),
        advantage=tuple(Use(part) for part in chain),
    )
