"""Classes of difficulty that compete for a fixed total of rollouts."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.control.price_rollouts import PriceRollouts
from strop.parts.sampling.allocate_by_bins import AllocateByBins
from strop.recipes._classes import EDGES, classed
from strop.recipes._inherit import inherits


@inherits(classed, d=0.0)
def rollout_gdro(
    *,
    # Success rate at which one class ends and the next begins.
    edges: tuple[float, ...] = EDGES,
    # Fewest and most rollouts of a prompt; in the paper the most is three times the mean.
    n_min: int = 2,
    n_max: int = 12,
    # Factor on scores; share of the uniform distribution; step size of the price.
    eta: float = 0.65,
    gamma: float = 0.01,
    price_rate: float = 0.05,
    # Which sign of the loss is rewarded, "paper" or "code"; its rule for changing classes is used,
    # too.
    variant: str = "paper",
    **parent: Any,
) -> Algorithm:
    """Group Distributionally Robust Optimization-Driven RL for LLM Reasoning, part 2.

    arXiv 2601.19280. Code: kishanpb/verl-gdro. Parent: grpo. Status: exact.

    Family: draws.
    In short: bandit over rollouts per class.
    Choose it when: the total of rollouts is fixed, and how many easy and hard prompts need should
    be learned, without a prediction for each prompt.
    Equation: p_b = (1 - gamma) softmax(eta s_b) + gamma / arms; n_b maximise sum log p_b(n_b) at
    sum prompts_b n_b = num_prompts num_rollouts; s_b(n_b) -= l_b + mu n_b; mu follows the spending.
    Differs from the parent: classes of difficulty as in prompt_gdro, each with its own number of
    rollouts; four updates a step, a wider clip above, a small KL penalty, tokens weigh the same.
    Differs once: `data.train_size=8`: prompts recur and fall into several classes (bins/frac_0 <
    1).
    Differs from the paper: 1. its code rewards the opposite side of the loss (variant "code") and
    gives budgets to the last step's classes by position; here by prompt; 2. as prompt_gdro, 3 and
    4; 3. where no split spends the rollouts exactly, the nearest (its code: shares by weight).
    Try: variant="code", num_rollouts with n_max, price_rate, edges.
    """
    algorithm = classed(edges=edges, variant=variant, **parent)
    spend = Use(AllocateByBins((), n_min, n_max, eta, gamma))
    price = Use(PriceRollouts(len(edges) + 1, n_min, n_max, price_rate, variant))
    return dataclasses.replace(algorithm, sampling=(*algorithm.sampling, spend), control=(price,))
