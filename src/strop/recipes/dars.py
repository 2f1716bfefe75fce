"""A second round of rollouts for hard prompts."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.curation.ask_by_hardness import AskByHardness
from strop.parts.curation.drop_uniform_groups import DropUniformGroups
from strop.parts.plan.split_into_minibatches import SplitIntoMinibatches
from strop.recipes._base import check_choice
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo, without=("num_minibatches",), num_rollouts=8)
def dars(
    *,
    # "ET" (equal treatment): hard prompts are brought up to half-solved ones; "HW": beyond them.
    schedule: str = "ET",
    # Most rollouts of a prompt (HW: 64).
    n_max: int = 32,
    # Passes over a step's rollouts (DARS-B, with 3072 prompts a step: 2).
    epochs: int = 1,
    normalize_std: bool = False,
    **parent: Any,
) -> Algorithm:
    """Depth-Breadth Synergy in RLVR: Unlocking LLM Reasoning Gains with Adaptive Exploration.

    arXiv 2508.13755. Code: yangzhch6/DARS. Parent: grpo. Status: exact.

    Family: draws.
    In short: hard prompts get more rollouts.
    Choose it when: pass@k matters, hard prompts, rarely solved in a few answers, hardly count in
    the gradient, and you can afford a second round of rollouts.
    Equation: a: accuracy of the first N, S = 2 a (1 - a); further rollouts: min(ceil((target - N S)
    / S), n_max - N) if a < 1/2; target = N / 2 (ET) or (1 - a) N (HW); A_i = R_i - mean over both.
    Differs from the parent: a second round of rollouts for prompts solved less than half of the
    time, added to the same group; no deviation; groups with equal outcomes are dropped; 8 rollouts
    first.
    Differs from the paper: 1. a group is dropped where all outcomes are equal, there at a mean of 0
    or 1; 2. breadth (DARS-B) is a choice of num_prompts and epochs. Each rollout weighs the same.
    Try: schedule="HW" with n_max=64, num_prompts with epochs=2, normalize_std.
    """
    check_choice("dars", ("ET", "HW"), schedule=schedule)
    ask = AskByHardness(n_max, schedule == "HW", normalize_std)
    return dataclasses.replace(
        grpo(normalize_std=normalize_std, **parent),
        curation=(Use(ask), Use(DropUniformGroups(max_rounds=1))),
        plan=Use(SplitIntoMinibatches(num_epochs=epochs)),
    )
