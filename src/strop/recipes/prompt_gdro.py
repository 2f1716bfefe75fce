"""Classes of difficulty, reweighted adversarially against the policy."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.scale.weigh_bins import WeighBins
from strop.parts.control.raise_scores_of_bins import RaiseScoresOfBins
from strop.recipes._classes import EDGES, classed
from strop.recipes._inherit import inherits


@inherits(classed)
def prompt_gdro(
    *,
    # Success rate at which one class ends and the next begins.
    edges: tuple[float, ...] = EDGES,
    # Weight of a step in a class's running loss.
    running: float = 0.12,
    # Factor on a class's score in its weight; largest weight; share of the uniform distribution
    # ("code").
    eta_q: float = 0.65,
    cap: float = 15.0,
    gamma: float = 0.01,
    # Whether losses are divided by the class's share of the rollouts, and scores standardised over
    # the classes.
    by_share: bool = True,
    standardise: bool = False,
    # "paper": A times omega; "code": A times q over its mean, no limit of S, its rule of classes.
    variant: str = "paper",
    **parent: Any,
) -> Algorithm:
    """Group Distributionally Robust Optimization-Driven RL for LLM Reasoning, part 1.

    arXiv 2601.19280. Code: kishanpb/verl-gdro. Parent: grpo. Status: exact.

    Family: draws.
    In short: up-weights hard prompt classes.
    Choose it when: easy prompts raise the average while hard ones make no progress, and the hard
    ones should count more while their loss is high.
    Equation: class b by the mean over H steps of [any answer right]; S_b <- (1 - running) S_b +
    running l_b / share_b; omega_b = exp(eta_q S_b); A_i <- A_i min(omega_b, cap).
    Differs from the parent: the classes and their weights, 1 for prompts in no class (set_apart);
    four updates a step, a wider clip above, a small KL penalty, all tokens weigh the same.
    Differs once: `data.train_size=16`: prompts recur and fall into several classes (bins/frac_0 <
    1).
    Differs from the paper: 1. the limit of S (5) is ours, its code ("code") has none; 2. advantages
    are not cut at 5, which four rollouts never reach; 3. its classes see 8 answers, here those that
    are trained on; 4. what set_apart leaves out is a class like the others in its code.
    Try: variant="code", edges=(0.1, 0.2, 0.4, 0.6, 0.8, 0.9), eta_q, standardise.
    """
    algorithm = classed(edges=edges, variant=variant, **parent)
    *compared, spread = algorithm.advantage
    weigh = Use(WeighBins((), eta_q, cap, gamma, variant))
    limit = 0.0 if variant == "code" else 5.0
    raising = RaiseScoresOfBins(len(edges) + 1, running, limit, by_share, standardise)
    return dataclasses.replace(
        algorithm, advantage=(*compared, weigh, spread), control=(Use(raising),)
    )
