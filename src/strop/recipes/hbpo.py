"""Policy optimisation under several token budgets, compared within a budget and across."""

import dataclasses
from typing import Any

from strop.method.algorithm import Algorithm
from strop.method.part import Use
from strop.parts.advantage.baseline.compare_budgets import CompareBudgets
from strop.parts.advantage.credit.spread_evenly import SpreadEvenly
from strop.parts.rollout.sample_with_budgets import SampleWithBudgets
from strop.recipes._base import ESTIMATOR
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo, without=(*ESTIMATOR, "beta"), clip_high=0.28, num_minibatches=4)
def hbpo(
    *,
    # "paper", or "code" (min(f1, f2) for every length, the budget's term twice).
    variant: str = "paper",
    # Longest answer that earns anything, tokens; 0: the run's longest answer (paper: 4096).
    L: int = 0,
    # Height of the cosines, reward units.
    beta: float = 4.0,
    # Added to the deviation.
    eps: float = 1e-6,
    # Token budgets, where below 1 as shares of the run's longest answer; a prompt's rollouts are
    # split over them (paper: 512, 1024, 2048, 2560).
    budgets: tuple[float, ...] = (0.125, 0.25, 0.5, 0.625),
    # Text at the start of every answer; {budget} stands for its budget.
    prefix: str = "",
    **parent: Any,
) -> Algorithm:
    """Hierarchical Budget Policy Optimization for Adaptive Reasoning.

    arXiv 2507.15844. Code: ZJU-REAL/HBPO. Parent: grpo. Status: exact.

    Family: rewards.
    In short: compares several token budgets.
    Choose it when: one model should adapt its length to the prompt: every prompt is tried under
    several token budgets, and the policy learns which is enough.
    Equation: R = f1(n, b) if n > b, else f2(b), 0 if wrong or n > L; f2 = beta cos(pi b / 2L),
    f1 = beta cos(pi n / 2L) - |n - b| / L; A = (mean of the budget's R - f2(b)) + (R - mean) /
    (std + eps) over all rollouts of the prompt.
    Differs from the parent: answers have a budget, are rewarded by their length relative to it, and
    have advantages from two comparisons; a wider clip above; four updates a step.
    Differs from the paper: 1. no text at the start of an answer states its budget unless prefix
    gives one, in words that the model understands; its tokens count as the policy's own, as in the
    code, and rewards see what follows it; 2. L and the budgets are the same shares of the run's
    longest answer as of the paper's 4096; 3. a format error is a reward below 0.
    Try: prefix ("I will answer with {budget} tokens. "), budgets, L (in the range of your model's
    answers).
    """
    return dataclasses.replace(
        grpo(**parent),
        rollout=Use(SampleWithBudgets(budgets=budgets, prefix=prefix)),
        advantage=(Use(CompareBudgets(L, beta, eps, variant)), Use(SpreadEvenly())),
    )
