"""A broad phase, then large groups on ever fewer of the hardest prompts."""

import dataclasses
from typing import Any

from strop.algorithm import Algorithm
from strop.part import Use
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo
from strop.sampling.draw_hardest_prompts import DrawHardestPrompts


@inherits(grpo)
def drive(
    *,
    # Prompts of each phase after the first; steps of each phase but the last.
    sizes: tuple[int, ...] = (72, 50, 25),
    lasts: tuple[int, ...] = (32, 64, 32),
    # Rollouts of a prompt in the first phase, and in those after it.
    num_rollouts: int = 8,
    later: int = 64,
    # Answers to each prompt that decide who stays in the next phase.
    num_answers: int = 8,
    num_prompts: int = 32,
    **parent: Any,
) -> Algorithm:
    """DRIVE: Data Curation Best Practices for RLVR in Competitive Code Generation.

    arXiv 2511.06307. Code: weights only. Parent: grpo. Status: exact.

    Family: draws.
    In short: phases on the hardest prompts.
    Choose it when: what is left to win lies in few prompts that are hardly ever solved, and a short
    broad phase has opened the policy up before.
    Equation: lasts[0] steps on all prompts, num_rollouts each; then for lasts[k] steps the
    sizes[k-1] of them with the lowest success, `later` rollouts each, success measured anew.
    Differs from the parent: the prompts of a phase are the hardest of the one before, measured as
    it begins; 8 rollouts first, 64 then.
    Differs from the paper: 1. its supervised stage before, and the shorter answers of the first
    phase, are left to the run (strop train sft; rollout.max_tokens); 2. how many answers measure
    success was not found; 3. its second stage begins with 175 problems of the pool, here with all.
    Try: sizes as shares of your prompts, lasts, later (16).
    """
    draw = DrawHardestPrompts(num_prompts, num_rollouts, sizes, lasts, later, num_answers)
    # Its fields num_prompts and num_rollouts keep the path that they have everywhere.
    return dataclasses.replace(
        grpo(**parent), sampling=(Use(draw, label="draw_in_shuffled_order"),)
    )
