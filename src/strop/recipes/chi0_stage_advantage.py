"""Imitation of all turns, each labelled by a progress estimator as good or bad."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.rollout.read_labelled_answers import ReadLabelledAnswers
from strop.parts.sampling.label_by_progress import LabelByProgress
from strop.recipes._base import drawn_by
from strop.recipes._inherit import inherits
from strop.recipes.sft import sft


@inherits(sft)
def chi0_stage_advantage(
    *,
    # Turns ahead over which the progress of a turn is measured.
    horizon: int = 50,
    # Percentage of the turns that are good.
    percent: float = 70.0,
    # Bins of equal size in place of good and bad; 0: none.
    num_slices: int = 0,
    # Whether the difference is predicted, instead of two values that are subtracted.
    relative: bool = True,
    # Steps of the progress estimator's training.
    fit_steps: int = 500,
    # Template of the prompt that the policy reads, with {prompt} and {label}.
    words: str = "{prompt}, Advantage: {label}",
    # Names of the labels 0, 1.
    labels: tuple[str, ...] = ("negative", "positive"),
    num_prompts: int = 32,
    **parent: Any,
) -> Algorithm:
    """chi_0: Resource-Aware Robust Manipulation via Taming Distributional Inconsistencies.

    arXiv 2602.09021 (stage advantage). Code: OpenDriveLab/kai0. Parent: sft. Status: partial.

    Family: demonstrations.
    In short: imitates turns labelled good/bad.
    Choose it when: demonstrations of long tasks are uneven, their stages are known, and good
    behaviour should be selectable afterwards by a label in the prompt.
    Equation: label_n = [A_n among the percent largest of its stage]; A_n = f(n, n + horizon), f
    trained on differences of (stage + share of the stage) / stages; loss = -mean_t logp_t after
    the prompt with its label.
    Differs from the parent: before the first step every turn is labelled by the progress that
    followed it, and the label is added to its prompt.
    Differs from the paper: 1. turns of a language agent (columns episode, stage and turn) in place
    of a robot's frames; 2. f is a small network on the hidden states of the initial policy, there a
    tuned copy of the policy; 3. its changes at deployment are left out. Its merging of weights is
    `strop.evaluation.merge_weights`. Later prompts request good behaviour by the same label, so
    write it into validation rows.
    Try: percent (30), horizon (a tenth of an episode), num_slices (10).
    """
    label = LabelByProgress(num_prompts, 1, horizon, percent, num_slices, relative, fit_steps)
    read = ReadLabelledAnswers(words=words, labels=() if num_slices else labels)
    return dataclasses.replace(
        sft(num_prompts=num_prompts, **parent),
        sampling=drawn_by(label),
        rollout=Use(read),
    )
