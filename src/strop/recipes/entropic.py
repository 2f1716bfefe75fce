"""Entropy held at a target by a proportional-integral controller on the signs of rewards."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.method.schedule import EntropyTarget
from strop.parts.advantage.baseline.weigh_signs_by_entropy_error import WeighSignsByEntropyError
from strop.parts.advantage.credit.spread_evenly import SpreadEvenly
from strop.parts.control.accumulate_entropy_error import AccumulateEntropyError
from strop.parts.reward.rescale_reward import RescaleReward
from strop.recipes._base import ESTIMATOR
from strop.recipes._door import door
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@door(
    parameters={
        "target_entropy": "target", "P": "gain", "I": "integral_gain",
        "initial_integral": "integral",
    },
    series={"batch_entropy_sequence": "batch_entropy"},
)  # fmt: skip
@inherits(grpo, without=ESTIMATOR, beta=1e-3, aggregation="token-mean")
def entropic(
    *,
    # Entropy to hold, nats.
    target: EntropyTarget = 0.5,
    # Weights of this step's error and of each earlier one, per nat.
    gain: float = 1.0,
    integral_gain: float = 0.01,
    # Weighted sum of earlier errors before the first step.
    integral: float = 0.0,
    # reward <- reward_scale * reward + reward_shift; use 1 and 0 where it is -1 or 1 already.
    reward_scale: float = 2.0,
    reward_shift: float = -1.0,
    **parent: Any,
) -> Algorithm:
    """EntroPIC: Entropy Stabilization with Proportional-Integral Control (in Entrocraft's form).

    arXiv 2511.15248. Code: lblaoke/entrocraft (entropic, a baseline of arXiv 2604.26326).
    Parent: grpo. Status: partial.

    Family: entropy.
    In short: PI control of entropy by signs.
    Choose it when: entropy should be held at one target by a controller with memory, which acts on
    the weights of positive and negative rewards.
    Equation: e = H - target; alpha = I + gain e; A_i = (1 + alpha) R_i if R_i > 0 else
    (1 - alpha) R_i; then I <- I + integral_gain e; loss as the parent's, all tokens alike.
    Differs from the parent: raw rewards, weighted by sign, are the advantages.
    Differs from the paper: this is the form in Entrocraft's repository; the rest of the paper was
    not read. Rewards of 0 and 1 are rescaled to -1 and 1 (there they already are).
    Try: target (nats), gain, integral_gain.
    """
    algorithm = grpo(**parent)
    weighed = WeighSignsByEntropyError(target, gain, integral)
    control = AccumulateEntropyError(gain=integral_gain)
    return dataclasses.replace(
        algorithm,
        reward=(*algorithm.reward, Use(RescaleReward(reward_scale, reward_shift))),
        advantage=(Use(weighed), Use(SpreadEvenly())),
        control=(Use(control),),
    )
