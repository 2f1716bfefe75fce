"""Chooses prompts by Thompson sampling from fading beliefs about their success."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.sampling.draw_uncertain_prompts import DrawUncertainPrompts
from strop.parts.sampling.track_success import TrackSuccess
from strop.recipes._base import drawn_by
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo, num_rollouts=8)
def vade(
    *,
    # Factor on a prompt's counts when it is sampled again, and after a step without it.
    lam1: float = 0.2,
    lam2: float = 0.999,
    # Exponents of success and failure in the information; (1, 1): symmetric.
    powers: tuple[float, float] = (1.0, 2.0),
    # Whether the belief's mean is used in place of a sample from it.
    greedy: bool = False,
    num_prompts: int = 32,
    **parent: Any,
) -> Algorithm:
    """VADE: Variance-Aware Dynamic Sampling via Online Sample-Level Difficulty Estimation.

    arXiv 2511.18902. Code: announced, not obtained. Parent: grpo. Status: exact.

    Family: draws.
    In short: Thompson sampling of prompts.
    Choose it when: many prompts of the pool are always or never solved, and should be avoided
    without spending answers to find that out.
    Equation: p_i ~ Beta(a_i + 1, b_i + 1) over the whole pool, I_i = p_i (1 - p_i)^2, the largest
    are chosen; chosen: a <- lam1 a + right, b <- lam1 b + wrong; others: a <- lam2 a, b <- lam2 b.
    Differs from the parent: which prompts are sampled; 8 rollouts of each.
    Differs once: `data.train_size=16`: prompts recur (tracked/success > 0).
    Differs from the paper: 1. counts start at 0, a uniform belief (its start was not found); 2. the
    whole pool competes (inferred).
    Try: lam1 (0.5 remembers longer), powers, curation="drop_uniform_groups".
    """
    rollouts = parent["num_rollouts"]
    draw = DrawUncertainPrompts(num_prompts, rollouts, powers, greedy)
    sampling = (*drawn_by(draw), Use(TrackSuccess(lam1, lam2)))
    return dataclasses.replace(grpo(**parent), sampling=sampling)
