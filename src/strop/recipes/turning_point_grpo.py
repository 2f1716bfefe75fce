"""Credit for segments of an answer by values along it, largest at its turning points."""

import dataclasses
from typing import Any

from torch import Tensor

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.credit.credit_turning_points import CreditTurningPoints
from strop.parts.probe.cut_at_unlikely_tokens import CutAtUnlikelyTokens
from strop.parts.probe.estimate_values_by_continuing import EstimateValuesByContinuing
from strop.recipes._base import ESTIMATOR
from strop.recipes._door import door
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


def _along(scores_BN: Tensor) -> dict[str, Tensor]:
    """A score before each step and one at the end [B, n + 1] as steps of one token."""
    values_BN = scores_BN[:, :-1]
    return {"prefix_value": values_BN, "rewards": scores_BN[:, -1], "mask": values_BN == values_BN}


@door(several={"prefix_scores": _along})
@inherits(grpo, without=ESTIMATOR, aggregation="token-mean", beta=1e-4, num_rollouts=8)
def turning_point_grpo(
    *,
    # Weight of the credit of a turning point.
    eta: float = 1.0,
    # Whether turning points of answers that rose and of ones that fell are made equally many.
    balance: bool = True,
    # Largest advantage either way.
    clamp: float = 5.0,
    eps: float = 1e-4,
    # Deviation: "biased" (n) or "unbiased" (n - 1).
    std: str = "biased",
    # Probability below which a token is unlikely: answers are cut there.
    p0: float = 0.9,
    # Unlikely tokens from one cut to the next.
    interval: int = 5,
    # Continuations sampled from each cut.
    num_continuations: int = 4,
    **parent: Any,
) -> Algorithm:
    """Alleviating Sparse Rewards by Modeling Step-Wise and Long-Term Sampling Effects in Flow-Based
    GRPO.

    arXiv 2602.06422. Code: YunzeTong/TurningPoint-GRPO. Parent: grpo. Status: partial.

    Family: credit.
    In short: extra credit for turning points.
    Choose it when: answers go wrong and recover on the way, continuations from inside them are
    affordable, and the segment that turned an answer should earn more than its own step.
    Equation: d_t = R_t - R_{t-1}, values along the answer, R_n its reward; r_t = eta (R_n -
    R_{t-1}) where d_t turns to the side on which the answer ends and stays, else d_t; A_t = (r_t -
    mean) / (std + eps) over the prompt's answers at their t-th segment, within clamp.
    Differs from the parent: an advantage of each segment, compared with the t-th segment of the
    others.
    Differs once: `'turning_point_grpo(interval=1)'`: answers turn at a token that decides them
    (steps/frac_turning > 0).
    Differs from the paper: it is for images. 1. Segments between unlikely tokens replace steps of
    denoising, and means of continuations at the rollouts' temperature replace its deterministic
    completions; 2. tokens before the first unlikely one get 0; 3. the loss is the parent's, with
    its clip, and counts rollouts without an advantage; 4. of turning points that tie, balance keeps
    the first.
    Try: interval, num_continuations, eta (0: plain steps), balance.
    """
    values = Use(EstimateValuesByContinuing(num_continuations))
    return dataclasses.replace(
        grpo(**parent),
        probes=(Use(CutAtUnlikelyTokens(p0, interval)), values),
        advantage=(Use(CreditTurningPoints(eta, balance, eps, std, clamp)),),
    )
