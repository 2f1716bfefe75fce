"""A teacher grades every token that the policy writes."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.credit.credit_reference_likelihood import CreditReferenceLikelihood
from strop.recipes._base import ESTIMATOR
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo, without=(*ESTIMATOR, "beta"), num_rollouts=4, aggregation="token-mean")
def on_policy_distillation(
    *,
    # Reward units per nat that the teacher finds a token likelier.
    coef: float = 1.0,
    # Discount of what the teacher says of a later token; 0: of the token alone.
    gamma: float = 0.0,
    # Whether the expected reward of a token is subtracted (vopd).
    centre: bool = False,
    # Whether the rewards of the task count, as in grpo, beside the teacher.
    rewards: bool = False,
    **parent: Any,
) -> Algorithm:
    """On-Policy Distillation: the sampled divergence from a teacher as the reward of tokens.

    arXiv 2306.13649 and 2306.08543 (the idea); K. Lu and Thinking Machines Lab, "On-Policy
    Distillation", 2025 (this form). Code: thinking-machines-lab/tinker-cookbook. Parent: grpo.
    Status: exact.

    Family: rewards.
    In short: a teacher grades every token.
    Choose it when: a better model of the same tokenizer is at hand and the policy should become
    like it where the policy itself goes, at a fraction of the rollouts that rewards need.
    Equation: A_t = coef (logp_teacher_t - logp_old_t); loss = -mean_t min(rho A_t, clip(rho) A_t).
    The teacher is the reference policy: model.reference=FOLDER.
    Differs from the parent: the advantage is the teacher's, of every token, without groups or
    deviation; `rewards` adds grpo's advantage to it; all tokens weigh the same.
    Differs from the paper: a clip of the ratio, without effect at one update a batch. Without
    model.reference the reference is the start, and this is the price of leaving it.
    Try: centre (true), gamma, rewards (true), num_rollouts (1 is enough).
    """
    algorithm = grpo(**parent)
    credit = Use(CreditReferenceLikelihood(coef, gamma, centre, adds=rewards))
    before = algorithm.advantage if rewards else ()
    return dataclasses.replace(algorithm, advantage=(*before, credit))
