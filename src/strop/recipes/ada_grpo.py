"""Group relative policy optimisation that keeps rare answer formats alive."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.scale.boost_rare_formats import BoostRareFormats
from strop.parts.reward.note_formats import NoteFormats
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo, num_rollouts=8)
def ada_grpo(
    *,
    # Texts that identify the format of an answer; the first one that it contains decides.
    marks: tuple[str, ...] = ("<LONG_COT>", "<CODE>", "<COT>"),
    # Text without which an answer's format is unknown and earns nothing; empty: none.
    needed: str = "",
    # Weight of the KL penalty towards the reference.
    beta: float = 0.001,
    **parent: Any,
) -> Algorithm:
    """ARM: Adaptive Reasoning Model (Ada-GRPO).

    arXiv 2505.20258, eq. 2 to 4. Code: TEAM-ARM/ARM. Parent: grpo. Status: exact.

    Family: rewards.
    In short: rewards rare answer formats more.
    Choose it when: the model can answer in several formats, from one word to long reasoning, and
    training would leave only the longest.
    Equation: A from R'_i = alpha_i R_i, alpha_i = 1 + (G / F_i - 1)(1 + cos(pi t / T)) / 2, F_i the
    rollouts of the group in the format of i, t the step of T.
    Differs from the parent: right answers in a rare format earn up to G / F_i times as much, a
    factor that shrinks until the last step; the KL penalty towards the reference is on.
    Differs once: `'ada_grpo(marks=("*", "+"))'`, marks that the model writes (formats/boost_mean !=
    1).
    Differs from the paper: steps count from 1. Formats are recognised by marks in the text; the
    paper first teaches four formats by supervised training. Rewards must lie between 0 and 1.
    Try: marks and needed ("<ANSWER>") for the formats of your model, num_rollouts.
    """
    algorithm = grpo(beta=beta, **parent)
    return dataclasses.replace(
        algorithm,
        reward=(*algorithm.reward, Use(NoteFormats(marks, needed))),
        advantage=(Use(BoostRareFormats()), *algorithm.advantage),
    )
