"""Policy optimisation whose clip bounds rise until good tokens have their share of the loss."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.loss.bound.balance_clip_bounds import BalanceClipBounds
from strop.parts.plan.split_into_minibatches import SplitIntoMinibatches
from strop.recipes._base import CLIP, ESTIMATOR, with_policy
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo

# low_start, low_max, low_step, high_start, high_max, high_step, target, dual_clip_c
FORMS = {
    "paper": (0.6, 0.9, 0.02, 1.2, 3.0, 0.05, 0.4, 0.0),
    "code": (0.6, 0.8, 0.05, 1.2, 2.0, 0.1, 1.0, 3.0),
}


@inherits(grpo, without=(*ESTIMATOR, *CLIP, "num_minibatches"), aggregation="token-mean")
def bapo(
    *,
    # "paper" (probability-weighted share, c_high first) or "code" (ratio of sums, c_low first).
    variant: str = "paper",
    # First lower bound on the ratio; here and below, 0 is the variant's own number.
    low_start: float = 0.0,
    # Last lower bound.
    low_max: float = 0.0,
    # Step of the lower bound.
    low_step: float = 0.0,
    # First upper bound on the ratio.
    high_start: float = 0.0,
    # Last upper bound.
    high_max: float = 0.0,
    # Step of the upper bound.
    high_step: float = 0.0,
    # Wanted share of good tokens (paper), or ratio of good to bad (code).
    target: float = 0.0,
    # Largest ratio on negative advantages; the paper has none, the code 3.
    dual_clip_c: float = 0.0,
    # Passes over a step's rollouts, one update each.
    num_epochs: int = 2,
    **parent: Any,
) -> Algorithm:
    """BAPO: Stabilizing Off-Policy RL for LLMs via Balanced Policy Optimization.

    arXiv 2510.18927. Code: WooooDyy/BAPO. Parent: grpo. Status: partial.

    Family: ratios.
    In short: adapts its clip in every update.
    Choose it when: bad tokens outweigh good ones on old answers or over several updates, and fixed
    clip bounds do not suit the whole run.
    Equation: loss = -1/N sum_t s_t, s = min(rho A, clip(rho, c_low, c_high) A); c_high, then
    c_low rise by their steps until sum_{A>0} p |s| / sum p |s| >= target, p the sampling policy's
    probability of the token.
    Differs from the parent: every update searches its bounds, which are ratios, not widths; all
    tokens weigh the same; two passes a step.
    Differs once: `plan.num_minibatches=8 training.lr=5e-3`, where the bounds rise (bapo/c_low >
    0.6).
    Differs from the paper: sums are over the whole update. p is logp_behavior where it is known,
    else logp_old. The paper's form was read through notes; "code" is exact except for its steps
    0.05 and 0.1, which come from its example script.
    Try: target (0.5), num_epochs, variant.
    """
    given = (low_start, low_max, low_step, high_start, high_max, high_step, target, dual_clip_c)
    own = FORMS.get(variant, FORMS["paper"])
    numbers = [value or default for value, default in zip(given, own, strict=True)]
    part = BalanceClipBounds(
        low=(numbers[0], numbers[1], numbers[2]),
        high=(numbers[3], numbers[4], numbers[5]),
        target=numbers[6],
        dual_clip_c=numbers[7],
        source_form=variant,
    )
    plan = Use(SplitIntoMinibatches(num_epochs))
    return with_policy(dataclasses.replace(grpo(**parent), plan=plan), objective=Use(part))
