"""Three losses on pairs of given answers: preference, quality of each answer, and imitation."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Term, Use
from strop.parts.control.carry_metric_forward import CarryMetricForward
from strop.parts.loss.bound.follow_log_likelihood import FollowLogLikelihood
from strop.parts.loss.bound.prefer_above_threshold import PreferAboveThreshold
from strop.parts.selection.keep_preferred import KeepPreferred
from strop.recipes._base import average, with_policy
from strop.recipes._inherit import inherits
from strop.recipes.dpo import dpo

THRESHOLD = "terms.quality.objective.delta"


@inherits(dpo, without=("loss_type", "label_smoothing", "reference_weight"))
def skywork_mpo(
    *,
    beta: float = 0.1,
    # Weight of the preference (DPO).
    w1: float = 0.8,
    # Weight of each answer's own quality (BCO); 0: none.
    w2: float = 0.2,
    # Weight of the chosen answers' log-likelihood, a mean over their tokens; 0: none.
    w3: float = 1.0,
    **parent: Any,
) -> Algorithm:
    """Skywork R1V2: Multimodal Hybrid Reinforcement Learning for Reasoning (MPO, its first phase).

    arXiv 2504.16656, sec. 3.2. Code: none released. Parent: dpo. Status: partial.

    Family: demonstrations.
    In short: preference, quality and imitation.
    Choose it when: dpo makes even the chosen answers less likely, or a model should be prepared on
    pairs for skywork_ssb.
    Equation: loss = w1 DPO + w2 BCO - w3 mean over chosen answers of mean_t logp_t; BCO = -mean
    over pairs of log sigmoid(r_chosen - delta) + log sigmoid(-(r_rejected - delta)),
    r = beta sum_t (logp_t - logp_ref_t).
    Differs from the parent: two more terms; delta is the mean of r over the steps so far.
    Differs from the paper: w1, w2, w3 and beta are not stated there and inferred: those of
    OpenGVLab/InternVL, whose MPO (arXiv 2411.10442) it is. delta is the mean of earlier steps, each
    weighing the same, 0 at first. The pairs are given: how its reward model makes them is left out.
    Try: w2, beta, training.lr (5e-7 to 5e-6); then skywork_ssb from its last checkpoint.
    """
    algorithm = dpo(beta=beta, **parent)
    quality = Term("quality", Use(PreferAboveThreshold(beta)), average("prompt-mean"), coef=w2)
    imitate = Term(
        "imitate",
        Use(FollowLogLikelihood()),
        average("seq-mean-token-mean"),
        on=Use(KeepPreferred()),
        coef=w3,
    )
    carry = CarryMetricForward(THRESHOLD, "preference/reward_mean")
    return dataclasses.replace(
        algorithm,
        terms=(
            *with_policy(algorithm, coef=w1).terms,
            *((quality,) if w2 else ()),
            *((imitate,) if w3 else ()),
        ),
        control=(Use(carry),) if w2 else (),
    )
