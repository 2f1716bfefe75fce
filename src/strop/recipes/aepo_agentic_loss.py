"""Tokens of high entropy get larger advantages, and keep a gradient above the clip."""

from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.loss.bound.keep_gradient_above_clip import KeepGradientAboveClip
from strop.recipes._base import CLIP, check_choice, with_policy
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo

KEPT = {"paper": "high", "all": "all", "code": "low", "none": "none"}


@inherits(grpo, without=CLIP, aggregation="token-mean", num_minibatches=8)
def aepo_agentic_loss(
    *,
    # Which tokens keep a gradient above the clip: "paper" (high entropy), "all", "code" (low
    # entropy, a defect of a released port) or "none".
    variant: str = "paper",
    # Change of the advantage per standard deviation of entropy.
    a: float = 0.2,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip_c: float = 3.0,
    **parent: Any,
) -> Algorithm:
    """Agentic Entropy-Balanced Policy Optimization (AEPO), its update.

    arXiv 2510.14545. Code: RUC-NLPIR/ARPO; WillDreamer/ARL-Arena. Parent: grpo. Status: partial.

    Family: entropy.
    In short: high-entropy tokens pass the clip.
    Choose it when: tokens of high entropy, as after a tool's reply, hit the upper clip early and
    deserve larger advantages.
    Equation: B = A (1 + a Z), Z the entropies' distance from their mean in deviations; loss =
    -mean_t min(rho B, clip(rho, 1 - clip_low, u) B), u = (1 + clip_high) rho / sg(rho) where
    Z > 0, else 1 + clip_high; dual clip.
    Differs from the parent: advantages grow with entropy; tokens of high entropy keep a gradient
    above the clip; a dual clip; all tokens weigh the same; eight updates a step.
    In full once: `plan.num_minibatches=4 training.lr=5e-3`, where tokens lie above the clip
    (clip_ratio/kept_mean > 0).
    Differs from the paper: inferred are a (from a port), and that u is for Z > 0 alone, as its
    abstract says (variant "all": every token). Its rollouts are those of aepo_agentic_rollout; here
    they are plain. Mean and deviation are taken over the update.
    Try: a (0 with variant "none": the parent's clip), variant, clip_high.
    """
    check_choice("aepo_agentic_loss", KEPT, variant=variant)
    part = KeepGradientAboveClip(clip_low, clip_high, dual_clip_c, a, KEPT[variant])
    return with_policy(grpo(**parent), objective=Use(part))
