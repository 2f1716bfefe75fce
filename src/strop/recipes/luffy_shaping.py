"""Group relative policy optimisation with a demonstration in every group."""

import dataclasses
import math
from typing import Any

from strop.batch.columns import DEMONSTRATION, POLICY
from strop.method.algorithm import Algorithm
from strop.method.part import Term, Use
from strop.parts.advantage.baseline.subtract_group_mean import SubtractGroupMean
from strop.parts.advantage.credit.spread_evenly import SpreadEvenly
from strop.parts.curation.replace_failed_with_demonstrations import ReplaceFailedWithDemonstrations
from strop.parts.loss.bound.clip_both_sides import ClipBothSides
from strop.parts.loss.bound.follow_advantage import FollowAdvantage
from strop.parts.loss.bound.shape_by_likelihood import ShapeByLikelihood
from strop.parts.loss.ratio.ratio_per_token import RatioPerToken
from strop.parts.selection.keep_origins import KeepOrigins
from strop.recipes._base import CLIP, ESTIMATOR, average, check_choice, entropy_terms
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo

EVERY_GROUP = 2**31 - 1  # more right answers than any group has
SHAPES = ("hyperbolic", "power", "p_logp")
POWERS = (("sqrt", 0.5), ("plain", 1.0))


@inherits(grpo, without=(*ESTIMATOR, *CLIP, "beta"), num_rollouts=7)
def luffy_shaping(
    *,
    # Weight of a demonstration's token: hyperbolic, power, sqrt, plain, logp (gamma logp) or p_logp
    # (p + gamma logp).
    shape: str = "hyperbolic",
    # Half-way probability of the hyperbola, exponent of the power (0.5 in the code's
    # configuration), weight of logp and of p_logp's logp.
    gamma: float = 0.1,
    # Width of the clip of the policy's own tokens; 0: none.
    clip: float = 0.0,
    # Weight of the entropy bonus, per nat.
    entropy_coef: float = 1e-3,
    aggregation: str = "token-sum-norm",
    **parent: Any,
) -> Algorithm:
    """Learning to Reason under Off-Policy Guidance (LUFFY, with policy shaping).

    arXiv 2504.14945. Code: TsinghuaC3I/Unify-Post-Training (its mixed core). Parent: grpo.
    Status: exact.

    Family: demonstrations.
    In short: a demonstration in every group.
    Choose it when: a stronger model's answers should compete in the policy's own groups, and tokens
    that the policy would not write should be learned first.
    Equation: loss = -1/L (sum_{own} rho A + sum_{demo} f(p) A) - entropy_coef mean_t H_t, p =
    exp(logp), f = p / (p + gamma), A_i = R_i - mean over the joint group, L the longest answer.
    Differs from the parent: the given answer (the data's column `completion`) joins its prompt's
    rollouts and is trained on with a weight of its own; no clip, no deviation; tokens are summed.
    Differs from the paper: L is the run's constant, the code's the padded width of a batch; a
    prompt without a completion has its rollouts only.
    Try: gamma (0.3), num_rollouts (1 more is the demonstration), aggregation ("token-mean").
    """
    width = clip or math.inf
    terms = (
        Term(
            "policy",
            objective=Use(ClipBothSides(width, width)),
            ratio=Use(RatioPerToken()),
            average=average(aggregation),
            on=Use(KeepOrigins((POLICY,), still_counts=True)),
        ),
        Term(
            "demonstrations",
            objective=Use(_shaped(shape, gamma)),
            average=average(aggregation),
            on=Use(KeepOrigins((DEMONSTRATION,), still_counts=True)),
            coef=gamma if shape == "logp" else 1.0,
        ),
        *entropy_terms(entropy_coef),
    )
    return dataclasses.replace(
        grpo(aggregation=aggregation, **parent),
        curation=(Use(ReplaceFailedWithDemonstrations(EVERY_GROUP, replaces=False)),),
        advantage=(Use(SubtractGroupMean(singleton="zero")), Use(SpreadEvenly())),
        terms=terms,
    )


def _shaped(shape: str, gamma: float) -> Any:
    """The weight of a demonstration's token. Raises UserError for an unknown shape."""
    own = {"logp": FollowAdvantage(), **{name: ShapeByLikelihood("power", n) for name, n in POWERS}}
    if shape in own:
        return own[shape]
    check_choice("luffy_shaping", (*SHAPES, *own), shape=shape)
    return ShapeByLikelihood(shape, gamma)
