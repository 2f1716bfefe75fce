"""Group relative policy optimisation that down-weights tokens which would change entropy most."""

from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.loss.bound.damp_entropy_changes import DampEntropyChanges
from strop.recipes._base import CLIP, with_policy
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo, without=CLIP, aggregation="token-mean", num_rollouts=8)
def steer(
    *,
    # "linear", or "exponential" (weights from 1 down; w_max has then no effect).
    mode: str = "linear",
    # Weights of the tokens that change entropy most and least.
    w_min: float = 0.8,
    w_max: float = 1.2,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    dual_clip_c: float = 10.0,
    **parent: Any,
) -> Algorithm:
    """Rethinking Entropy Interventions in RLVR: An Entropy Change Perspective (STEER).

    arXiv 2510.10150. Code: zz-haooo/STEER. Parent: grpo. Status: exact.

    Family: entropy.
    In short: damps tokens that move entropy.
    Choose it when: entropy should be stabilised in both directions by mild weights on tokens, even
    under a very wide clip.
    Equation: loss = -mean_t w_t min(rho A, clip(rho) A), with dual clip; c_t = |A / pi_old pi
    (1 - pi) (log pi + H_t)|; w_t falls from w_max at the update's smallest c to w_min at its
    largest, on a line or as exp(-k c).
    Differs from the parent: the weights w, a wider clip above, a dual clip; all tokens weigh the
    same.
    Differs from the paper: this is what its repository runs; the paper's own formula (read only in
    a summary) has the clip's indicator as a factor of c. Extremes are over the update. A step has
    one update, not 16 (`num_minibatches=16`), which took more time.
    Try: mode, w_min (0.5), clip_high (5 with clip_low 0.99, its stress test).
    """
    part = DampEntropyChanges(clip_low, clip_high, dual_clip_c, mode, w_min, w_max)
    return with_policy(grpo(**parent), objective=Use(part))
