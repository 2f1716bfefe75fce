"""Imitation where the policy fails, reinforcement where it succeeds, prompt by prompt."""

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
from strop.parts.loss.bound.follow_log_likelihood import FollowLogLikelihood
from strop.parts.loss.ratio.ratio_per_token import RatioPerToken
from strop.parts.selection.keep_origins import KeepOrigins
from strop.recipes._base import CLIP, ESTIMATOR, average, entropy_terms
from strop.recipes._door import door
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@door(also=("hpt_loss",))
@inherits(
    grpo, without=(*ESTIMATOR, *CLIP, "beta", "aggregation"), num_rollouts=8, num_minibatches=2
)
def hpt(
    *,
    # Most right answers with which a prompt is still imitated; -1: never.
    gate: int = 0,
    # Outcome from which an answer is right.
    success: float = 1.0,
    # Weight of the imitation term.
    sft_coef: float = 1.0,
    # Weight of the entropy bonus, per nat.
    entropy_coef: float = 1e-3,
    # Constant that divides the sum of the policy term, tokens; 0: the run's longest answer.
    L_max: int = 0,
    **parent: Any,
) -> Algorithm:
    """Towards a Unified View of Large Language Model Post-Training (Hybrid Post-Training).

    arXiv 2509.04419, algorithm 1. Code: TsinghuaC3I/Unify-Post-Training. Parent: grpo.
    Status: exact.

    Family: demonstrations.
    In short: imitates where the policy fails.
    Choose it when: every prompt has a demonstration and the policy solves only some prompts: those
    should be reinforced, the others imitated.
    Equation: loss = sft_coef mean_{demo} -logp - 1/L_max sum_{own} rho (R_i - mean_g)
    - entropy_coef mean_t H_t; a prompt with at most `gate` right answers has its demonstration in
    place of its rollouts. The data's column `completion` holds it.
    Differs from the parent: prompts with few right answers are imitated; no deviation, no clip,
    tokens are summed and divided by one constant; an entropy bonus; two updates a step.
    Differs from the paper: means and sums are over the update, the released code's over
    micro-batches that are added up; no update is skipped for its gradient's norm. L_max is the
    longest answer that the run allows, as it is the padded length there (8192).
    Try: gate, sft_coef (0.3), L_max (smaller: reinforcement weighs more).
    """
    terms = (
        Term(
            "policy",
            objective=Use(ClipBothSides(clip_low=math.inf, clip_high=math.inf)),
            ratio=Use(RatioPerToken()),
            average=average("token-sum-norm", L_max),
            on=Use(KeepOrigins((POLICY,))),
        ),
        Term(
            "sft",
            objective=Use(FollowLogLikelihood()),
            average=average("token-mean"),
            on=Use(KeepOrigins((DEMONSTRATION,))),
            coef=sft_coef,
        ),
        *entropy_terms(entropy_coef),
    )
    return dataclasses.replace(
        grpo(**parent),
        curation=(Use(ReplaceFailedWithDemonstrations(gate, success)),),
        advantage=(Use(SubtractGroupMean(singleton="zero")), Use(SpreadEvenly())),
        terms=terms,
    )
