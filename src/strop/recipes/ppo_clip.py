"""The clipped surrogate of PPO with the dual clip."""

from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.loss.bound.clip_both_sides import ClipBothSides
from strop.recipes._base import with_policy
from strop.recipes._inherit import inherits
from strop.recipes.gae import gae


@inherits(gae, num_minibatches=4)
def ppo_clip(
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    # Largest ratio on negative advantages, above 1; 0: none.
    dual_clip_c: float = 3.0,
    **parent: Any,
) -> Algorithm:
    """Proximal Policy Optimization Algorithms (with the dual clip).

    arXiv 1707.06347, eq. 7; dual clip arXiv 1912.09729, eq. 5. Code: verl-project/verl.
    Parent: gae. Status: exact.

    Family: critics.
    In short: PPO with the dual clip.
    Choose it when: you want PPO as verl runs it, with several updates a step, in which bad tokens
    with huge ratios must not dominate the loss.
    Equation: L1 = max(-A rho, -A clip(rho, 1 - clip_low, 1 + clip_high)); loss = mean_t of
    min(L1, -A dual_clip_c) where A < 0, else of L1; advantages and critic as in gae.
    Differs from the parent: the dual clip; four updates a step.
    Differs once: `plan.num_minibatches=4 training.lr=5e-3`, where the clip acts
    (clip_ratio/region_mean > 0).
    Differs from the paper: 1. the dual clip, with verl's 3 (0: plain PPO); 2. the critic is gae's;
    3. no entropy bonus; 4. one pass over a step's answers in four updates, as in verl's example
    (there several passes: plan.num_epochs).
    Try: dual_clip_c (0: plain PPO), clip_high (0.28), num_minibatches (1: gae).
    """
    clip = ClipBothSides(clip_low, clip_high, dual_clip_c)
    return with_policy(gae(**parent), objective=Use(clip))
