"""An entropy bonus that is switched on and strengthened while entropy is below a floor."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Term, Use
from strop.method.schedule import EntropyTarget
from strop.parts.control.hold_entropy_with_coefficient import HoldEntropyWithCoefficient
from strop.parts.loss.penalty.reward_entropy import RewardEntropy
from strop.recipes._base import ESTIMATOR, average
from strop.recipes._door import door
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@door(
    parameters={
        "entropy_coef": "c0", "entropy_target": "target", "entropy_coef_delta": "delta",
        "entropy_coef_min": "c_min", "entropy_coef_max": "c_max",
    },
    series={"step_entropy": "metrics.entropy"},
)  # fmt: skip
@inherits(grpo, without=ESTIMATOR, aggregation="token-mean")
def adaptive_entropy_coef(
    *,
    c0: float = 0.0,
    # The floor, nats.
    target: EntropyTarget = 0.2,
    delta: float = 0.005,
    c_min: float = 0.0,
    c_max: float = 1.0,
    **parent: Any,
) -> Algorithm:
    """Skywork Open Reasoner 1 Technical Report (adaptive entropy control).

    arXiv 2505.22312. Code: huggingface/trl (use_adaptive_entropy). Parent: grpo.
    Status: exact.

    Family: entropy.
    In short: entropy bonus set by a controller.
    Choose it when: entropy must not fall below a floor and no fixed coefficient manages that over a
    whole run.
    Equation: loss = grpo's - a_s mean_t H_t; a_s = c if H_{s-1} <= target else 0;
    c <- min(c + delta, c_max) if H_s <= target else max(c - delta, c_min).
    Differs from the parent: an entropy term whose coefficient an integral controller sets; token
    mean, as in TRL.
    Differs once: `'adaptive_entropy_coef(target=4)'`, a target above the entropy
    (entropy_control/applied_coef > 0).
    Differs from the paper: H is the mean over the tokens of a step, not of an optimiser step.
    Try: target (nats, or a schedule of it), delta, c0.
    """
    algorithm = grpo(**parent)
    bonus = Term("entropy", Use(RewardEntropy()), average("token-mean"), coef=0.0)
    control = HoldEntropyWithCoefficient(
        start=c0, target=target, delta=delta, bounds=(c_min, c_max)
    )
    return dataclasses.replace(algorithm, terms=(*algorithm.terms, bonus), control=(Use(control),))
