"""The policy gradient held near the sampling policy by a quadratic penalty."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Term, Use
from strop.parts.loss.bound.follow_advantage import FollowAdvantage
from strop.parts.loss.penalty.penalise_kl_to_reference import PenaliseKlToReference
from strop.recipes._base import CLIP, average, with_policy
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo
from strop.support.errors import UserError


@inherits(grpo, without=(*CLIP, "beta"))
def dro(
    *,
    # Weight of the penalty, reward units per nat squared; above 0.
    beta: float = 0.1,
    aggregation: str = "token-mean",
    **parent: Any,
) -> Algorithm:
    """Offline Regularised Reinforcement Learning for LLM Alignment (Direct Reward Optimisation).

    arXiv 2405.19107. Code: none of the authors' (verl carries the loss). Parent: grpo.
    Status: partial.

    Family: ratios.
    In short: quadratic penalty, no clip.
    Choose it when: a smooth penalty towards the old policy suits you better than a clip; it needs
    several epochs and a search for its strength.
    Equation: loss = -1/N sum_t (A logp - beta/2 (logp - logp_old)^2); weight of a token:
    A - beta (logp - logp_old).
    Differs from the parent: no ratio and no clip: a quadratic penalty towards the policy at the
    step's start.
    Differs once: `plan.num_minibatches=4` (loss/spring != 0).
    Differs from the paper: this is verl's loss with group-relative advantages; the paper's own also
    trains a value function, on given answers. No default of beta was found: 0.1 is ours.
    Try: beta, plan.num_epochs (2: in the first update of a step the penalty is zero).
    """
    if not beta > 0:
        raise UserError(f"dro.beta must be above 0, it is {beta}")
    algorithm = with_policy(
        grpo(aggregation=aggregation, **parent), objective=Use(FollowAdvantage()), ratio=None
    )
    spring = Use(PenaliseKlToReference("k2"), (("logp_ref_T", "logp_old_T"),))
    term = Term("spring", spring, average(aggregation), coef=beta)
    return dataclasses.replace(algorithm, terms=(*algorithm.terms, term))
