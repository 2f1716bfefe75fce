"""Policy optimisation with one importance ratio per answer."""

from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.loss.ratio.ratio_per_sequence import RatioPerSequence
from strop.recipes._base import ESTIMATOR, with_policy
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo, without=ESTIMATOR, clip_low=3e-4, clip_high=4e-4, num_minibatches=4)
def gspo(**parent: Any) -> Algorithm:
    """Group Sequence Policy Optimization.

    arXiv 2507.18071, eq. 5 and 7. Code: none released (verl, TRL carry it). Parent: grpo.
    Status: exact.

    Family: ratios.
    In short: one importance ratio per answer.
    Choose it when: token-level ratios are noisy (mixtures of experts, long answers, several updates
    a batch) and the reward judges whole answers.
    Equation: s_i = exp(mean_t (logp - logp_old));
    loss = -mean_i min(s_i A_i, clip(s_i, 1 - clip_low, 1 + clip_high) A_i).
    Differs from the parent: the ratio, and so the clip, is that of the whole answer; the clip is
    narrow, since a mean of log-ratios moves little; four updates a step.
    Differs once: `plan.num_minibatches=4` (ratio/token_distance_mean > 0).
    Differs from the paper: no. The rollouts of a step need several updates for the clip to act.
    Try: clip_high, num_minibatches (1: grpo), aggregation.
    """
    return with_policy(grpo(**parent), ratio=Use(RatioPerSequence()))
