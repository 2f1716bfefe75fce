"""Group relative policy optimisation that keeps rare forms of answering alive."""

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
    # Texts that tell the form of an answer; the first that it contains decides.
    marks: tuple[str, ...] = ("<LONG_COT>", "<CODE>", "<COT>"),
    # Text without which the form is unknown and earns nothing; empty: none.
    needed: str = "",
    # Weight of the penalty on leaving the reference.
    beta: float = 0.001,
    **parent: Any,
) -> Algorithm:
    """ARM: Adaptive Reasoning Model (Ada-GRPO).

    arXiv 2505.20258, eq. 2 to 4. Code: TEAM-ARM/ARM. Parent: grpo. Status: exact.

    Family: rewards.
    In short: rare forms of answers earn more.
    Choose it when: the model can answer in several forms, from a word to long reasoning, and
    training leaves only the longest.
    Equation: A from R'_i = alpha_i R_i, alpha_i = 1 + (G / F_i - 1)(1 + cos(pi t / T)) / 2, F_i
    the rollouts of the group in the form of i, t the step of T.
    Differs from the parent: right answers in a rare form earn up to G / F_i times as much, less
    and less until the last step; the penalty towards the reference is on.
    Differs once: `'ada_grpo(marks=("*", "+"))'`, marks that the model writes (formats/boost_mean !=
    1).
    Differs from the paper: a step counts from 1. Forms are told by marks in the text; the paper
    first teaches four forms by supervised training. Rewards must lie between 0 and 1.
    Try: marks and needed ("<ANSWER>") for the forms of your model, num_rollouts.
    """
    algorithm = grpo(beta=beta, **parent)
    return dataclasses.replace(
        algorithm,
        reward=(*algorithm.reward, Use(NoteFormats(marks, needed))),
        advantage=(Use(BoostRareFormats()), *algorithm.advantage),
    )
