"""A broad phase, then large groups on ever fewer of the hardest prompts."""

import dataclasses
from itertools import accumulate
from typing import Any

from strop.method.algorithm import Phase, Phases, Until
from strop.parts.sampling.draw_hardest_prompts import DrawHardestPrompts
from strop.recipes._base import drawn_by
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo
from strop.support.errors import UserError


@inherits(grpo)
def drive(
    *,
    # Prompts of each phase after the first.
    sizes: tuple[int, ...] = (72, 50, 25),
    # Steps of each phase but the last; below 1, shares of the run.
    lasts: tuple[float, ...] = (0.2, 0.4, 0.2),
    # Rollouts of a prompt in the first phase, and in those after it.
    num_rollouts: int = 8,
    later: int = 64,
    # Answers to each prompt that decide which prompts stay in the next phase.
    num_answers: int = 8,
    num_prompts: int = 32,
    **parent: Any,
) -> Phases:
    """DRIVE: Data Curation Best Practices for RLVR in Competitive Code Generation.

    arXiv 2511.06307. Code: weights only. Parent: grpo. Status: exact.

    Family: draws.
    In short: phases on the hardest prompts.
    Choose it when: further gains lie in a few prompts that are hardly ever solved, and a short
    phase on all prompts has widened the policy's exploration before.
    Equation: lasts[0] steps on all prompts, num_rollouts each; then for lasts[k] steps the
    sizes[k-1] of them with the lowest success, `later` rollouts each, success measured again.
    Differs from the parent: the prompts of a phase are the hardest of the one before, measured when
    it starts; 8 rollouts first, then 64.
    Differs once: `data.train_size=100 training.steps=5`, whose second step is in the second phase
    (draw/pool < 100).
    Differs from the paper: 1. its supervised stage before, and the shorter answers of the first
    phase, are left to the run (strop train sft; phases.broad.rollout.max_tokens); 2. how many
    answers measure success was not found; 3. its second stage begins with 175 problems, here with
    all; 4. phase lengths are shares of the run, as there (lasts=(32, 64, 32) of 160 steps).
    Try: sizes as shares of your prompts, lasts, later (16), phases.hard_1.until.
    """
    if not sizes or len(sizes) != len(lasts) or min((*sizes, *lasts)) <= 0 or min(sizes) < 1:
        raise UserError(
            "give as many `sizes` as `lasts`, prompts of each phase after the first and steps of "
            f"each but the last, all above 0: {sizes}, {lasts}"
        )
    if len({last < 1 for last in lasts}) > 1:
        raise UserError(f"`lasts` are all steps or all shares of the run: {lasts}")
    common = grpo(**parent)
    phases = []
    untils = [Until(round(step, 9)) for step in accumulate(lasts)]
    for number, (keep, until) in enumerate(zip((0, *sizes), (*untils, None), strict=True)):
        answers = later if number else num_rollouts
        draw = DrawHardestPrompts(num_prompts, answers, keep, num_answers)
        algorithm = dataclasses.replace(common, sampling=drawn_by(draw))
        phases.append(Phase(algorithm, until, f"hard_{number}" if number else "broad"))
    return Phases(tuple(phases))
