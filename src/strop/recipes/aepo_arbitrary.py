"""Entropy held at a target by right answers sampled at a higher or a lower temperature."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.method.schedule import EntropyTarget
from strop.parts.advantage.scale.praise_other_stages import PraiseOtherStages
from strop.parts.control.carry_metric_forward import CarryMetricForward
from strop.parts.rollout.sample_at_second_temperature import SampleAtSecondTemperature
from strop.parts.selection.swap_in_other_stages import SwapInOtherStages
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo, aggregation="token-mean", num_minibatches=4)
def aepo_arbitrary(
    *,
    # Entropy to hold, nats, or a schedule of it.
    h_target: EntropyTarget = 0.5,
    # Temperatures while entropy is at or below the target, and above it.
    t_high: float = 1.2,
    t_low: float = 0.8,
    # Most of the answers sampled again that are trained on; half as many above the target.
    s: int = 60,
    # Share of the prompts that are sampled again.
    share: float = 0.25,
    # Smallest advantage of an answer that is imitated.
    smallest: float = 0.05,
    **parent: Any,
) -> Algorithm:
    """Arbitrary Entropy Policy Optimization: Entropy Is Controllable in Reinforcement Fine-tuning.

    arXiv 2510.08141. Code: 597358816/AEPO. Parent: grpo. Status: exact.

    Family: entropy.
    In short: entropy target by temperature.
    Choose it when: entropy should follow a target up and down without an entropy loss, and a share
    of the prompts can be sampled again.
    Equation: grad J = grad J_grpo + alpha E_{o ~ pi^T}[grad log pi(o) R(o)]; T = t_high if
    H_prev <= h_target else t_low; alpha is s / batch size.
    Differs from the parent: a share of the prompts is sampled again at temperature T; up to s of
    the good answers, with advantage 1, replace plain rollouts; all tokens weigh the same; four
    updates a step.
    Differs from the paper: this is what its repository runs. H_prev is the entropy of the previous
    step's plain rollouts, there the one logged in its update. Its s is 60 of 2,560 rollouts: lower
    it with the batch. Its form without further rollouts is left out.
    Try: h_target (0.75; points(((0, 0.6), (0.5, 0.3), (1, 0.3)))), s (0: the parent), share.
    """
    algorithm = grpo(**parent)
    *chain, credit = algorithm.advantage
    rollout = SampleAtSecondTemperature(hot=t_high, cool=t_low, target=h_target, share=share)
    previous = "rollout.sample_at_second_temperature.previous"
    return dataclasses.replace(
        algorithm,
        rollout=Use(rollout),
        advantage=(*chain, Use(PraiseOtherStages(smallest)), credit),
        selection=(Use(SwapInOtherStages(s)),),
        control=(Use(CarryMetricForward(previous, keep="last")),),
    )
