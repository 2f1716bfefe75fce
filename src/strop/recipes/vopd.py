"""A teacher grades every token, less the grade expected under the policy."""

from typing import Any

from strop.method.algorithm import Algorithm
from strop.recipes._inherit import inherits
from strop.recipes.on_policy_distillation import on_policy_distillation


@inherits(on_policy_distillation, without=("gamma", "centre"))
def vopd(**parent: Any) -> Algorithm:
    """KL for a KL: On-Policy Distillation with Control Variate Baseline.

    arXiv 2605.07865. Code: none released. Parent: on_policy_distillation. Status: partial.

    Family: rewards.
    In short: distillation with less noise.
    Choose it when: a teacher grades the policy's tokens and single samples are too noisy: on
    average the step is that of on_policy_distillation, with less noise.
    Equation: A_t = coef (logp_teacher_t - logp_old_t + KL(old || teacher)_t), the divergence over
    the vocabulary; loss as the parent's. The teacher is the reference: model.reference=FOLDER.
    Differs from the parent: the expected reward of a token, minus the divergence, is its baseline.
    Differs from the paper: 1. its sums over the k likeliest tokens are left out; 2. the ratio is
    clipped, without effect at one update a batch. Only the abstract and a summary were read.
    Try: coef, rewards (true), num_rollouts (1 is enough).
    """
    return on_policy_distillation(centre=True, **parent)
