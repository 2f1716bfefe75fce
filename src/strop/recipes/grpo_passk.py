"""Policy optimisation of the best of several answers."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.baseline.credit_lead_of_best import CreditLeadOfBest
from strop.recipes._door import door
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@door(parameters={"norm_adv_by_std_in_grpo": "normalize_std", "divide_by_std": "normalize_std"})
@inherits(grpo, without=("singleton",))
def grpo_passk(**parent: Any) -> Algorithm:
    """Optimizing Language Models for Inference Time Objectives using Reinforcement Learning.

    arXiv 2503.19595 (pass@k with a single winner). Code: none of the authors' (verl carries it).
    Parent: grpo. Status: exact.

    Family: baselines.
    In short: only the best answer, by its lead.
    Choose it when: pass@k is the goal and rewards are graded, or right answers so rare that a group
    seldom has more than one.
    Equation: A_i = (R_(1) - R_(2)) / (std_g + eps) for the best rollout of the prompt, 0 for all
    others; R_(1), R_(2) its two largest rewards.
    Differs from the parent: only the best answer of a prompt is trained on, by its lead over the
    second.
    Differs from the paper: a group of one gives 0 where verl raises. With rewards of 0 and 1 there
    is a signal only where exactly one answer is right.
    Try: num_rollouts, normalize_std (false), clip_high.
    """
    algorithm = grpo(**parent)
    _, *scale, spread = algorithm.advantage
    # Divide first, by the deviation of all rewards; that of the lead is another one.
    return dataclasses.replace(algorithm, advantage=(*scale, Use(CreditLeadOfBest()), spread))
