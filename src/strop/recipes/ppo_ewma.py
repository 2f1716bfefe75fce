"""Clipped policy optimisation whose proximal policy is an average of the policies so far."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.control.renew_reference import RenewReference
from strop.parts.loss.bound.clip_both_sides import ClipBothSides
from strop.parts.loss.correction.weigh_by_engine_ratio import WeighByEngineRatio
from strop.parts.loss.ratio.ratio_per_token import RatioPerToken
from strop.recipes._base import with_policy
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo

ANCHOR = (("logp_old_T", "logp_ref_T"),)  # a ratio over the average, which is the reference


@inherits(grpo, without=("beta",), aggregation="token-mean", num_minibatches=4)
def ppo_ewma(
    *,
    # Weight of a policy in the average relative to the next step's; 0: only the newest.
    decay: float = 0.889,
    # Largest importance weight, average over sampling policy.
    most_weight: float = 100.0,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    **parent: Any,
) -> Algorithm:
    """Batch size-invariance for policy optimization.

    arXiv 2110.00641. Code: openai/ppo-ewma. Parent: grpo. Status: partial.

    Family: ratios.
    In short: clips around averaged weights.
    Choose it when: batches are small or answers old, and the clip should keep the policy near a
    slow average of itself, at a pace independent of the batch size.
    Equation: loss = -1/N sum_t w min(u A, clip(u, 1 - clip_low, 1 + clip_high) A),
    u = pi / pi_prox, w = pi_prox / pi_behavior detached; pi_prox has the weights
    sum_k decay^(n-k) theta_k / sum_k decay^(n-k) of the start and of the policies after each step.
    Differs from the parent: the clip is centred on the average, and samples are weighted by the
    average over the sampling policy; 4 updates; all tokens weigh the same.
    Differs once: `training.steps=2` (correction/ess < 1).
    Differs from the paper: the average adds the policy once a step, there after every update (so
    decay spans the policies of four updates there, 0.889^4 is 0.62); the decay follows from its
    experiments' centre of mass of 8 updates. The code bounds pi / pi_behavior by 100, here w is
    bounded. Its normalisation of advantages, and how the learning rate follows the batch, are left
    out. Answers are fresh unless `engine.staleness` or `training.max_staleness` is given. The paper
    arXiv 2603.06009 has the same average as an option.
    Try: decay (0: the policy before the step; 0.6), engine.staleness (4), plan.num_minibatches.
    """
    algorithm = with_policy(
        grpo(**parent),
        objective=Use(ClipBothSides(clip_low, clip_high)),
        ratio=Use(RatioPerToken(), ANCHOR),
        correction=Use(WeighByEngineRatio("token", high=most_weight), ANCHOR),
    )
    renew = RenewReference(after=1, every=1, decay=decay)
    return dataclasses.replace(algorithm, control=(*algorithm.control, Use(renew)))
