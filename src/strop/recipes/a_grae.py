"""Group relative advantages without their two symmetries."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.scale.damp_praise_while_weak import DampPraiseWhileWeak
from strop.parts.advantage.scale.shift_weight_to_hard_prompts import ShiftWeightToHardPrompts
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo, aggregation="token-mean", num_rollouts=8, num_minibatches=4)
def a_grae(
    *,
    # "paper", or "code": the denominators and the mean over groups of the released code.
    variant: str = "paper",
    # Mean reward of a step (omega) from which right answers count in full.
    alpha: float = 1.0,
    **parent: Any,
) -> Algorithm:
    """Unveiling Implicit Advantage Symmetry: Why GRPO Struggles with Exploration and Difficulty.

    arXiv 2602.05548, eq. 11 to 13. Code: Yu7-code/A-GRAE. Parent: grpo. Status: exact.

    Family: baselines.
    In short: up-weights hard prompts over time.
    Choose it when: a weak policy should lean on easy prompts first and move to hard ones as it
    improves, without a curriculum in the data.
    Equation: A_i <- A_i / 2 (omega / sqrt(p) + (1 - omega) / sqrt(1 - p)), p the prompt's and
    omega the step's mean reward; A_i > 0: A_i <- A_i min(1, omega / alpha).
    Differs from the parent: hard prompts weigh more as the policy gets better, and right answers
    less while it is weak; all tokens weigh the same. Rewards lie between 0 and 1; four updates a
    step.
    Differs from the paper: no; the average is the released code's (token-mean). The released code
    divides by 1 - sqrt(p), which variant "code" does too; it also switches the method off except at
    one exact number; this is left out.
    Try: alpha (0.5 for geometry), normalize_std (false: on dr_grpo's advantages), clip_high.
    """
    algorithm = grpo(**parent)
    *estimator, spread = algorithm.advantage
    shaped = (Use(ShiftWeightToHardPrompts(variant)), Use(DampPraiseWhileWeak(alpha, variant)))
    return dataclasses.replace(algorithm, advantage=(*estimator, *shaped, spread))
