"""Policy optimisation with a soft gate in place of the clip."""

from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.loss.bound.bound_ratio_softly import BoundRatioSoftly
from strop.recipes._base import CLIP, ESTIMATOR, with_policy
from strop.recipes._door import door
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@door(parameters={"sapo_temperature_pos": "tau_pos", "sapo_temperature_neg": "tau_neg"})
@inherits(grpo, without=(*ESTIMATOR, *CLIP), num_minibatches=8)
def sapo_soft(
    *,
    # How fast the weight of good tokens fades as their ratio leaves 1.
    tau_pos: float = 1.0,
    # How fast the weight of bad tokens fades.
    tau_neg: float = 1.05,
    **parent: Any,
) -> Algorithm:
    """Soft Adaptive Policy Optimization.

    arXiv 2511.20347. Code: none released (verl, TRL carry it). Parent: grpo. Status: exact.

    Family: ratios.
    In short: soft gate per token.
    Choose it when: a hard clip is too coarse: the weight of a token should fade with its ratio,
    sooner for bad tokens.
    Equation: loss = -mean_i mean_t 4 / tau sigmoid(tau (rho - 1)) A_i; tau = tau_pos where
    A_i > 0, else tau_neg.
    Differs from the parent: no token is cut off; its weight fades smoothly as its ratio leaves 1, a
    little faster for bad tokens; eight updates a step.
    Differs once: `plan.num_minibatches=4` (soft_gate/weight_mean < 1).
    Differs from the paper: no. The value at ratio 1 is not that of the clipped loss.
    Try: tau_neg, tau_pos, num_minibatches (1: grpo).
    """
    return with_policy(grpo(**parent), objective=Use(BoundRatioSoftly(tau_pos, tau_neg)))
