"""Clipped policy optimisation whose proximal policy is not the policy that sampled the answers."""

import math
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.loss.bound.clip_both_sides import ClipBothSides
from strop.parts.loss.correction.weigh_by_engine_ratio import WeighByEngineRatio
from strop.parts.loss.ratio.ratio_per_sequence import RatioPerSequence
from strop.parts.loss.ratio.ratio_per_token import RatioPerToken
from strop.parts.selection.drop_mismatched_rollouts import DropMismatchedRollouts
from strop.recipes._base import check_choice, with_policy
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo
from strop.recipes.rollout_correction import REJECTING, SAMPLER
from strop.support.errors import UserError

RATIOS = {"token": RatioPerToken(), "sequence": RatioPerSequence()}


@inherits(grpo, aggregation="token-mean", num_minibatches=4)
def areal_decoupled_ppo(
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    # Largest ratio on negative advantages (above 1), before weighting; 0: none.
    dual_clip_c: float = 0.0,
    # Unit of the ratio to the proximal policy: "token" or "sequence".
    ratio_level: str = "token",
    # False: one ratio, to the policy that sampled the answers, and no weight.
    decoupled: bool = True,
    # Unit whose weight is bounded: "token" or "sequence".
    level: str = "token",
    # What is done with a weight out of bounds: "none", "mask" (no gradient) or "clamp".
    action: str = "none",
    # The bounded measure of the weight: "ratio", or "k1", "k2", "k3" in nats.
    metric: str = "ratio",
    # How a sequence's metric is made of its tokens': "sum", "mean" or "max".
    agg: str = "mean",
    # Upper bound of the metric.
    upper: float = 5.0,
    # Lower bound of the metric; 0: none.
    lower: float = 0.0,
    **parent: Any,
) -> Algorithm:
    """AReaL: A Large-Scale Asynchronous Reinforcement Learning System for Language Reasoning.

    arXiv 2505.24298, eq. 5. Code: inclusionAI/AReaL. Parent: grpo. Status: exact.

    Family: staleness.
    In short: decoupled clip for stale samples.
    Choose it when: answers are several steps old and used for several updates; the clip should be
    centred on the current policy, not on the one that sampled them.
    Equation: loss = -1/N sum_t w min(u A, clip(u, 1 - clip_low, 1 + clip_high) A),
    u = pi / pi_prox, w = pi_prox / pi_behavior detached; pi_prox is pi when the step begins.
    Differs from the parent: old answers are weighted by w, and the clip is centred on the policy at
    the step's start; 4 updates; all tokens weigh the same.
    Differs once: `engine.staleness=2` (correction/ess < 1).
    Differs from the paper: the released code leaves w out unless an action is set: here it is
    always in. N counts masked tokens, as there. k3 is exp(x) - 1 - x, x = log w, as samples of the
    behaviour policy require (the code has -x). At level "sequence" w is the geometric mean for the
    metric "ratio", and "clamp" works only with that metric and agg "mean". Its penalty of 0.1 in
    the reward and the log-linear pi_prox are left out. There answers are up to 4 steps old, here
    they are fresh unless `engine.staleness` or `training.max_staleness` is given.
    Try: engine.staleness (4), action ("mask"), decoupled (false).
    """
    check_choice("areal_decoupled_ppo", RATIOS, ratio_level=ratio_level, level=level)
    check_choice("areal_decoupled_ppo", ("none", "mask", "clamp"), action=action)
    check_choice("areal_decoupled_ppo", ("ratio", "k1", "k2", "k3"), metric=metric)
    check_choice("areal_decoupled_ppo", ("sum", "mean", "max"), agg=agg)
    clip = ClipBothSides(clip_low, clip_high, dual_clip_c)
    algorithm, ratio = grpo(**parent), RATIOS[ratio_level]
    if not decoupled:
        if action != "none":
            raise UserError("areal_decoupled_ppo: without decoupled there is no weight to bound")
        return with_policy(algorithm, objective=Use(clip), ratio=Use(ratio, SAMPLER))
    weigh = _weigh(level, action, metric, agg, upper, lower)
    algorithm = with_policy(algorithm, objective=Use(clip), ratio=Use(ratio), correction=Use(weigh))
    if action != "mask":
        return algorithm
    return with_policy(algorithm, on=Use(_drop(level, metric, agg, upper, lower), REJECTING))


def _weigh(
    level: str, action: str, metric: str, agg: str, upper: float, lower: float
) -> WeighByEngineRatio:
    """The weight w, within bounds where they clamp it."""
    unit = "sequence-mean" if level == "sequence" and metric == "ratio" else "token"
    if action == "none":
        return WeighByEngineRatio("token", high=math.inf)
    if action == "mask":
        return WeighByEngineRatio(unit, high=math.inf)
    if (metric, agg) != ("ratio", "mean"):
        raise UserError(
            "areal_decoupled_ppo: clamping takes metric='ratio' and agg='mean'; give these, or "
            "action='mask'"
        )
    return WeighByEngineRatio(unit, low=lower, high=upper)


def _drop(level: str, metric: str, agg: str, upper: float, lower: float) -> DropMismatchedRollouts:
    """The selection that takes rollouts out of the gradient, but not out of the averages."""
    estimate = "k1" if metric == "ratio" else metric
    measure = f"token_{estimate}" if level == "token" else f"seq_{agg}_{estimate}"
    bounds = (lower, upper)
    if metric == "k1":  # bounds of the part are on the ratio itself
        bounds = (math.exp(lower) if lower else 0.0, math.exp(min(upper, 700.0)))
    return DropMismatchedRollouts(*bounds, 0.0, measure, still_counts=True)
