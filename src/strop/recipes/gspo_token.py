"""One importance ratio per answer, with its own gradient for every token."""

from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.loss.ratio.ratio_per_sequence import RatioPerSequence
from strop.recipes._base import with_policy
from strop.recipes._inherit import inherits
from strop.recipes.gspo import gspo


@inherits(gspo)
def gspo_token(**parent: Any) -> Algorithm:
    """Group Sequence Policy Optimization, with token-wise advantages (GSPO-token).

    arXiv 2507.18071, sec. 4.3. Code: none released (verl carries it under the name gspo).
    Parent: gspo. Status: exact.

    Family: ratios.
    In short: gspo with advantages per token.
    Choose it when: you want one ratio per answer, but advantages differ within it, as from a critic
    or from steps.
    Equation: s_t = exp(min(sg[mean_s (logp - logp_old)] + logp_t - sg[logp_t], 10));
    loss = -mean_i mean_t min(s_t A_t, clip(s_t, 1 - clip_low, 1 + clip_high) A_t).
    Differs from the parent: a token's advantage weights its own gradient, not the whole answer's;
    the gradient is the same while the advantages of an answer are equal.
    Differs once: `advantage='spread_evenly | subtract_optimal_token_mean'`, or other advantages per
    token (advantage/baseline_shift > 0).
    Differs from the paper: no; verl's form, which has no dual clip.
    Try: gae's advantages in place of the group's, clip_high, num_minibatches.
    """
    return with_policy(gspo(**parent), ratio=Use(RatioPerSequence(own_gradient=True)))


@inherits(gspo, aggregation="seq-mean-token-sum")
def luspo(**parent: Any) -> Algorithm:
    """Length-Unbiased Sequence Policy Optimization.

    arXiv 2602.05261. Code: murphy4122/luspo (TRL carries it). Parent: gspo. Status: exact.

    Family: ratios.
    In short: gspo weighted by length.
    Choose it when: gspo's answers become shorter than the task needs, since every answer counts the
    same however long it is.
    Equation: s_i = exp(mean_t (logp - logp_old));
    loss = -mean_i |y_i| min(s_i A_i, clip(s_i, 1 - clip_low, 1 + clip_high) A_i).
    Differs from the parent: an answer counts as many times as it has tokens, so that long right
    answers are no longer pushed less per token.
    Differs once: `plan.num_minibatches=4`, and wherever lengths differ (average/total > 1).
    Differs from the paper: no. The clip is gspo's.
    Try: clip_high, num_minibatches, aggregation.
    """
    return gspo(**parent)
