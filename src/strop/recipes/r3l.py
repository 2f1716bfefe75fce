"""Reflect on an episode, retry from where it went wrong, and learn the retry without the hint."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Term, Use
from strop.parts.advantage.baseline.subtract_group_log_mean_exp import SubtractGroupLogMeanExp
from strop.parts.advantage.baseline.subtract_group_mean import SubtractGroupMean
from strop.parts.advantage.credit.spread_evenly import SpreadEvenly
from strop.parts.advantage.scale.fix_praise_of_successes import FixPraiseOfSuccesses
from strop.parts.advantage.scale.weigh_signs import WeighSigns
from strop.parts.loss.bound.follow_advantage import FollowAdvantage
from strop.parts.loss.penalty.penalise_kl_to_reference import PenaliseKlToReference
from strop.parts.rollout.retry_from_reflection import RetryFromReflection
from strop.parts.selection.drop_reused_prefixes import DropReusedPrefixes
from strop.recipes._base import CLIP, ESTIMATOR, average, check_choice
from strop.recipes._door import door
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@door(
    parameters={
        "amplify": "alpha", "success_threshold": "success", "opmd_baseline": "baseline",
    }
)  # fmt: skip
@inherits(grpo, without=(*ESTIMATOR, *CLIP, "beta"), num_rollouts=4)
def r3l(
    *,
    # Factor on positive advantages of rollouts that are no success.
    alpha: float = 3.0,
    # Advantage of a success.
    praise: float = 1.0,
    # Outcome from which an answer is a success.
    success: float = 1.0,
    # The baseline: "mean" of the rewards, or "logavgexp": tau log mean exp(reward / tau).
    baseline: str = "mean",
    # The loss is divided by 1 + tau.
    tau: float = 1.0,
    # Weight of the halved squared distance from the reference (released code: 0.001).
    beta: float = 0.0,
    # Whether the turns before the one that a retry begins with are masked in both episodes.
    pivotal: bool = True,
    # How a reflection names its turn: "json" as in the paper, "number", or "auto": JSON where the
    # model's tokenizer has the characters for it.
    form: str = "auto",
    aggregation: str = "token-mean",
    **parent: Any,
) -> Algorithm:
    """R^3L: Reflect-then-Retry Reinforcement Learning with Language-Guided Exploration, Pivotal
    Credit, and Positive Amplification.

    arXiv 2601.03715. Code: shiweijiezero/R3L. Parent: grpo. Status: exact.

    Family: turns.
    In short: retries guided by reflection.
    Choose it when: episodes can be reset to a turn, most fail at one step, and the policy is better
    at diagnosing that step than at avoiding it.
    Equation: A_i = 1 if R_i >= 1, else 3 max(R_i - mean_g, 0) + min(R_i - mean_g, 0), over a
    prompt's episodes and retries; loss = -mean_t m_t A logp_t / (1 + tau); m = 0 before the retry's
    turn; good reflections and their guided retries are trained on with A = 1.
    Differs from the parent: each episode may add a retry, so that a group has up to twice
    num_rollouts; no deviation, ratio or clip; positive advantages weigh more than negative ones;
    shared prefixes are not trained on.
    Differs from the paper: 1. advantages are those of its code (there praise and alpha are one
    number); 2. a reflection of the shipped models, whose tokenizer has no words, only names a turn
    (form); 3. no replay: while every step brings new rollouts, its queue takes those first; 4. no
    KL penalty unless beta > 0.
    Try: rollout.reflection_tokens (4096 there), rollout.ask and rollout.guide, alpha (1) with
    praise, pivotal (false).
    """
    check_choice("r3l", ("mean", "logavgexp"), baseline=baseline)
    rollout = RetryFromReflection(form=form)
    centre = SubtractGroupMean("raw") if baseline == "mean" else SubtractGroupLogMeanExp(tau)
    weigh, fix = WeighSigns(alpha, 1.0), FixPraiseOfSuccesses(success, praise)
    chain = (centre, weigh, fix, SpreadEvenly())
    follow = Term("policy", Use(FollowAdvantage()), average(aggregation), coef=1 / (1 + tau))
    kl = Term("kl", Use(PenaliseKlToReference("k2")), average(aggregation), coef=beta)
    return dataclasses.replace(
        grpo(aggregation=aggregation, **parent),
        rollout=Use(rollout),
        advantage=tuple(map(Use, chain)),
        selection=(Use(DropReusedPrefixes(in_both=True)),) if pivotal else (),
        terms=(follow, kl) if beta else (follow,),
    )
