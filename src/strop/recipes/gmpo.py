"""Policy optimisation on the geometric mean of an answer's clipped ratios."""

from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.loss.bound.clip_geometric_mean import ClipGeometricMean
from strop.recipes._base import ESTIMATOR, with_policy
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo, without=ESTIMATOR, num_minibatches=8)
def gmpo(
    *,
    # Width of the clip below, nats of the log-ratio.
    clip_low: float = 0.4,
    # Width of the clip above, nats of the log-ratio.
    clip_high: float = 0.4,
    **parent: Any,
) -> Algorithm:
    """Geometric-Mean Policy Optimization.

    arXiv 2507.20673. Code: callsys/GMPO (verl carries it). Parent: grpo. Status: exact.

    Family: ratios.
    In short: geometric mean of clipped ratios.
    Choose it when: a few tokens with extreme ratios destabilise the updates; averaged in log space
    they matter little and the clip can be wide.
    Equation: y_t = s min(s x_t, s clip(x_t, -clip_low, clip_high)), x = logp - logp_old,
    s = sign(A_i); loss = -mean_i A_i exp(mean_t y_t).
    Differs from the parent: tokens are clipped one by one, widely and in log space, and an answer
    is weighted by the geometric mean of its clipped ratios; eight updates a step.
    Differs once: `plan.num_minibatches=4 training.lr=5e-3`, where the clip acts
    (clip_ratio/region_mean > 0).
    Differs from the paper: x is clamped to +-20 nats, as everywhere here (not in verl). The paper's
    average is over answers: another aggregation weighs long answers more.
    Try: clip_high, clip_low, num_minibatches (1: grpo).
    """
    return with_policy(grpo(**parent), objective=Use(ClipGeometricMean(clip_low, clip_high)))
