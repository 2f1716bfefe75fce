"""Group relative policy optimisation without its length and difficulty biases."""

from typing import Any

from strop.method.algorithm import Algorithm
from strop.recipes._base import average, with_policy
from strop.recipes._inherit import inherits
from strop.recipes.grpo import grpo


@inherits(grpo, without=("std",), normalize_std=False)
def dr_grpo(
    *, aggregation: str = "seq-mean-token-sum-norm", length: int = 0, **parent: Any
) -> Algorithm:
    """Understanding R1-Zero-Like Training: A Critical Perspective.

    arXiv 2503.20783, sec. 3.2. Code: sail-sg/understand-r1-zero. Parent: grpo. Status: exact.

    Family: baselines.
    In short: no std division, constant length.
    Choose it when: wrong answers grow ever longer under grpo, or prompts whose rewards hardly
    differ should not count as much as those where they differ widely.
    Equation: A_i = R_i - mean_g;
    loss = -1/(B L) sum_i sum_t min(rho A_i, clip(rho, 1 - clip_low, 1 + clip_high) A_i).
    Differs from the parent: no division by the group's deviation, and tokens are divided by one
    constant L instead of their answer's length.
    Differs from the paper: no. L is the run's longest answer unless `length` is set.
    Try: num_rollouts, length, clip_high.
    """
    algorithm = grpo(aggregation=aggregation, **parent)
    return with_policy(algorithm, average=average(aggregation, length)) if length else algorithm
