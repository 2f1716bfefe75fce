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
    # Reward units per nat by which the teacher finds a token likelier.
    coef: float = 1.0,
    # Discount of the teacher's reward for later tokens; 0: only the token's own.
    gamma: float = 0.0,
    # Whether the expected reward of a token is subtracted (vopd).
    centre: bool = False,
    # Whether the task's rewards count too, as in grpo, beside the teacher.
    rewards: bool = False,
    **parent: Any,
) -> Algorithm:
    """On-Policy Distillation: the sampled divergence from a teacher as the reward of tokens.

    arXiv 2306.13649 and 2306.08543 (the idea); K. Lu and Thinking Machines Lab, "On-Policy
    Distillation", 2025 (this form). Code: thinking-machines-lab/tinker-cookbook. Parent: grpo.
    Status: exact.

    Family: rewards.
    In short: a teacher grades every token.
    Choose it when: a better model with the same tokenizer is at hand and the policy should match it
    on its own answers, with a fraction of the rollouts that rewards need.
    Equation: A_t = coef (logp_teacher_t - logp_old_t); loss = -mean_t min(rho A_t, clip(rho) A_t).
    The teacher is the reference policy, model.reference=FOLDER.
    Differs from the parent: the advantage comes from the teacher, for every token, without groups
    or deviation; `rewards` adds grpo's advantage to it; all tokens weigh the same.
    Differs from the paper: the ratio is clipped, without effect at one update a batch. Without
    model.reference the reference is the initial policy, and this is a KL penalty towards it.
    Try: centre (true), gamma, rewards (true), num_rollouts (1 is enough).
    """
    algorithm = grpo(**parent)
    credit = Use(CreditReferenceLikelihood(coef, gamma, centre, adds=rewards))
    before = algorithm.advantage if rewards else ()
    return dataclasses.replace(algorithm, advantage=(*before, credit))
