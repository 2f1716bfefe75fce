"""Group relative policy optimisation on a curriculum of stages by difficulty."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.schedule import Linear, Schedule
from strop.parts.sampling.draw_in_stages import DrawInStages
from strop.recipes._base import drawn_by
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo)
def craft_gui(
    *,
    # Column of the data with each task's difficulty, a number; empty: measured before step 1.
    column: str = "",
    # Number of stages, from the easiest tasks to the hardest.
    stages: int = 3,
    # Progress of the curriculum, 0 to 1; by default that of the run.
    progress: float | Schedule = Linear(0.0, 1.0),  # noqa: B008 (frozen)
    # Answers sampled for each task where difficulty is measured.
    num_answers: int = 4,
    num_prompts: int = 32,
    num_rollouts: int = 16,
    **parent: Any,
) -> Algorithm:
    """CRAFT-GUI: Curriculum-Reinforced Agent for GUI Tasks.

    arXiv 2508.11360. Code: none released. Parent: grpo. Status: abstract.

    Family: draws.
    In short: curriculum from easy to hard.
    Choose it when: tasks have a known or measurable difficulty and the hard ones earn nothing
    before the easy ones are learnt.
    Equation: grpo's, over the tasks of stage floor(progress * stages) of a ranking by difficulty;
    its reward is the weighted sum of the reward functions given (reward.weights).
    Differs from the parent: which prompts are sampled.
    In full once: `data.train_size=40`, or after its first stage (draw/stage > 0).
    Differs from the paper: it is described in words only; labels, when stages change, and the
    weights of its rule checks and its judge (model:FOLDER or judge:FILE beside a rule) are yours to
    set.
    Try: column, stages, progress=points(((0, 0), (0.2, 0.5), (1, 1))).
    """
    draw = DrawInStages(num_prompts, num_rollouts, column, stages, progress, num_answers)
    return dataclasses.replace(grpo(**parent), sampling=drawn_by(draw))
