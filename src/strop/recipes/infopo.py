"""Outcome advantages, and credit for turns whose feedback changed the next action."""

import dataclasses
from typing import Any

from strop.advantage.baseline.subtract_group_mean import SubtractGroupMean
from strop.advantage.credit.add_feedback_gain import AddFeedbackGain
from strop.advantage.scale.divide_by_group_std import DivideByGroupStd
from strop.algorithm import Algorithm
from strop.part import Use
from strop.probe.measure_feedback_gain import MeasureFeedbackGain
from strop.recipes._base import ESTIMATOR
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo
from strop.rollout.play_turns import PlayTurns


@inherits(grpo, without=ESTIMATOR, aggregation="token-mean", num_rollouts=5)
def infopo(
    *,
    # Weight of the feedback's gains when training begins.
    beta0: float = 0.5,
    # Deviation of a group's rewards at which the gains have mostly faded.
    T: float = 0.5,
    # How fast the weight falls: beta0 exp(-decay epoch).
    decay: float = 0.0,
    # Passes over the prompts so far; a number or a schedule.
    epoch: float = 0.0,
    eps: float = 1e-6,
    # Whether outcomes are divided by the group's deviation.
    divide_by_std: bool = True,
    **parent: Any,
) -> Algorithm:
    """InfoPO: Information-Driven Policy Optimization for User-Centric Agents.

    arXiv 2603.00656. Code: kfq20/InfoPO. Parent: grpo. Status: partial.

    Family: turns.
    In short: turns paid for telling feedback.
    Choose it when: the policy should learn to ask: turns whose reply changes the next action gain,
    above all where outcomes do not differ.
    Equation: A = A_out + beta sigmoid(-std_g / T) ratio A_int; A_int the z-score over the group's
    tokens of I_k / |action k|, I_k = mean logp of action k+1 given feedback k less that given a
    placeholder; ratio = min(1, max(std(A_out), 1) / std(A_int)); beta = beta0 exp(-decay epoch).
    Differs from the parent: turns with informative feedback gain, most where outcomes are equal;
    all tokens weigh the same.
    Differs from the paper: the outcome's form for one turn; its code for several also rescales
    credits over turns (gamma 0.8). epoch is a number, in a run a schedule such as
    epoch=linear(0, 3) for three epochs.
    Try: beta0, T (0.05 in the code), num_rollouts.
    """
    gain = AddFeedbackGain(beta0, T, eps, decay, epoch)
    algorithm = grpo(**parent)
    divide = (Use(DivideByGroupStd(eps)),) if divide_by_std else ()
    return dataclasses.replace(
        algorithm,
        rollout=Use(PlayTurns()),
        probes=(Use(MeasureFeedbackGain()),),
        advantage=(Use(SubtractGroupMean()), *divide, Use(gain)),
    )
