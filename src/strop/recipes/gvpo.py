"""The policy gradient that fits a group's centred log-ratios to its centred rewards."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Term, Use
from strop.parts.loss.bound.follow_advantage import FollowAdvantage
from strop.parts.loss.penalty.penalise_ratio_variance import PenaliseRatioVariance
from strop.recipes._base import CLIP, average, with_policy
from strop.recipes._inherit import inherits
from strop.recipes.rloo import rloo


@inherits(rloo, without=(*CLIP, "singleton", "beta", "aggregation"), num_minibatches=4)
def gvpo(
    *,
    # Reward that corresponds to a nat of log-ratio; 0 leaves the plain policy gradient.
    beta: float = 0.1,
    **parent: Any,
) -> Algorithm:
    """GVPO: Group Variance Policy Optimization for Large Language Model Post-Training.

    arXiv 2504.19599, algorithm 1. Code: jszkc/GVPO (verl-recipe carries it). Parent: rloo.
    Status: exact.

    Family: ratios.
    In short: log-ratios fitted to rewards.
    Choose it when: answers serve several updates or were sampled with old weights, and their
    rewards should say how far apart they may move, instead of a ratio and a clip.
    Equation: l_i = sum_t (logp - logp_old); loss = mean over prompts of 1/(k - 1) sum_i of (beta
    (l_i - mean_g l) - (R_i - mean_g R))^2 / (2 beta), split into the policy gradient (R_i - mean_g
    R) l_i, in which the mean of l cancels, and a penalty on the variance of l.
    Differs from the parent: no ratio and no clip; prompts weigh the same; answers that have moved
    as far apart as their rewards are not pushed further. The first update of a step is rloo's; four
    updates a step.
    Differs once: `plan.num_minibatches=4` (loss/spring != 0).
    Differs from the paper: its loss is beta times this one, which under Adam affects nothing but
    the clipping of gradients; the logged value leaves out terms without a gradient. A group of one
    gives no gradient.
    Try: beta (0.05 to 0.2), num_minibatches (1: the penalty is zero).
    """
    plain = rloo(singleton="zero", aggregation="prompt-mean", **parent)
    algorithm = with_policy(plain, objective=Use(FollowAdvantage()), ratio=None)
    spring = Use(PenaliseRatioVariance(), (("logp_ref_T", "logp_old_T"),))
    term = Term("spring", spring, average("prompt-mean"), coef=beta)
    return dataclasses.replace(algorithm, terms=(*algorithm.terms, term))
