"""Policy optimisation that clips the importance weight instead of the update."""

from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.loss.bound.weight_by_clipped_ratio import WeightByClippedRatio
from strop.recipes._base import ESTIMATOR, with_policy
from strop.recipes._door import door
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


# TRL does not use epsilon here, and its epsilon_high is the largest weight itself.
@door(parameters={"epsilon": None, "epsilon_high": ("clip_high", lambda most: most - 1)})
@inherits(grpo, without=ESTIMATOR, aggregation="token-mean")
def cispo(*, clip_low: float = 10.0, clip_high: float = 0.2, **parent: Any) -> Algorithm:
    """MiniMax-M1: Scaling Test-Time Compute Efficiently with Lightning Attention.

    arXiv 2506.13585, eq. 4 and 5. Code: none released (verl, TRL carry it). Parent: grpo.
    Status: exact.

    Family: ratios.
    In short: clips the weight, keeps gradients.
    Choose it when: rare decisive tokens leave the clip range after the first update of a batch and
    should keep a gradient, with a bounded weight.
    Equation: loss = -1/N sum_t sg[clip(rho_t, 1 - clip_low, 1 + clip_high)] A_t logp_t.
    Differs from the parent: tokens outside the band keep a gradient, with the band's edge as
    weight; all tokens weigh the same.
    Differs once: `plan.num_minibatches=4 training.lr=5e-3`, where the clip acts
    (clip_ratio/region_mean > 0).
    Differs from the paper: the widths are not given there; these are from verl's example (no lower
    bound). TRL's epsilon_high 5 is clip_high 4 here. A step has one update, not 16
    (`num_minibatches=16`), which took more time, nor verl's 4.
    Try: clip_high (4), clip_low, plan.num_minibatches.
    """
    objective = WeightByClippedRatio(clip_low, clip_high)
    return with_policy(grpo(**parent), objective=Use(objective))
