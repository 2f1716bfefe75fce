"""A curriculum along the angles between the hidden states of a prompt's tokens."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.probe.measure_angles import MeasureAngles
from strop.parts.sampling.draw_along_ranking import DrawAlongRanking
from strop.recipes._base import drawn_by
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo)
def gain_rl(
    *,
    # Prompts after which the centre of the sampling window moves.
    subset_size: int = 256,
    # Most ranks by which either signal moves the centre at once.
    n: float = 500.0,
    # Steepness of both signals; accuracy from which the first one moves it.
    alpha: float = 2.0,
    beta_acc: float = 0.5,
    # Standard deviation of the sampled ranks.
    std: float = 1000.0,
    # Weight of the cosines with the prefix that all prompts share (its code: 8).
    inter_weight: float = 1.0,
    num_prompts: int = 32,
    num_rollouts: int = 16,
    **parent: Any,
) -> Algorithm:
    """Angles Don't Lie: Unlocking Training-Efficient RL Through the Model's Own Signals.

    arXiv 2506.02281. Code: wangqinsi1/GAINRL. Parent: grpo. Status: exact.

    Family: draws.
    In short: curriculum by hidden-state angles.
    Choose it when: you want a curriculum without labels or answers, from prompts that the policy
    finds familiar to all others, for one forward pass over the prompts beforehand.
    Equation: ranks by falling mean cosine among a prompt's hidden states; P(j) ~ exp(-((j - mu) /
    std)^2 / 2); after subset_size prompts mu += clip(n tanh(alpha (acc - beta_acc)) + n tanh(alpha
    C), 0, 1000), C: the mean cosine in their sequences.
    Differs from the parent: which prompts are sampled; a forward pass for C.
    Differs from the paper: 1. hidden states are the last layer's output; 2. n, not n / 2, as in its
    code; 3. mu stops at the last rank; 4. the errors of its code are not copied (accuracy halved,
    rows cut twice, cosines normalised over tokens).
    Try: std and n as shares of your prompts (here 3700), subset_size, inter_weight.
    """
    window = (n, std, (alpha, beta_acc), inter_weight, subset_size)
    draw = DrawAlongRanking(num_prompts, num_rollouts, *window)
    return dataclasses.replace(
        grpo(**parent),
        sampling=drawn_by(draw),
        probes=(Use(MeasureAngles()),),
    )
