"""Group relative policy optimisation without the prompts that are out of reach."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.parts.sampling.draw_solvable_prompts import DrawSolvablePrompts
from strop.recipes._base import drawn_by
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo)
def rif_rft(
    *,
    # Answers to each prompt of the pool before the first step.
    num_answers: int = 8,
    # Right answers up to which a prompt is left out; -1: none is.
    threshold: int = 0,
    # Whether prompts that are always solved are left out too.
    drop_mastered: bool = False,
    num_prompts: int = 32,
    num_rollouts: int = 16,
    **parent: Any,
) -> Algorithm:
    """Reinforcement Fine-Tuning Naturally Mitigates Forgetting in Continual Post-Training.

    arXiv 2507.05386. Code: released, not obtained. Parent: grpo. Status: partial.

    Family: draws.
    In short: drops unsolvable prompts first.
    Choose it when: the data holds prompts that the model never solves, and one pass before
    training, for each task of a sequence, should remove them.
    Equation: prompts i with more than `threshold` right answers among num_answers of the policy at
    the start of the task; then grpo on these.
    Differs from the parent: every prompt is answered before the first step, and those that are
    never solved are left out for the whole task.
    Differs from the paper: its number of answers and its threshold were not seen (8 and none right
    are ours). `strop sequence rif_rft` trains it on tasks one after another, the filter at the
    start of each, and reports what was forgotten.
    Try: num_answers, drop_mastered (true: as dynamic sampling, once), threshold.
    """
    draw = DrawSolvablePrompts(
        num_prompts, num_rollouts, num_answers, threshold, drop_mastered=drop_mastered
    )
    return dataclasses.replace(grpo(**parent), sampling=drawn_by(draw))
