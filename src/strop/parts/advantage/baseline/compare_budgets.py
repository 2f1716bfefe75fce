"""Compare answers that were given different token budgets, within a budget and across."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, require, require_one_of
from strop.support.errors import UserError


@dataclass(frozen=True)
class CompareBudgets:
    """The policy learns to stay within a budget, and to give each prompt the right one.

        f1(n, b) = beta cos(pi n / 2L) - |n - b| / L,   f2(b) = beta cos(pi b / 2L)
        R_i = 0 if wrong or n_i > L;  f1(n_i, b_i) if n_i > b_i;  else f2(b_i);  a reward < 0 stays
        advantage_i = (mean_{j of i's budget} R_j - f2(b_i)) + (R_i - mean_g) / (std_g + eps)

    The first term compares with the group's rollouts of the same budget, the second with all of
    them. "code": R = min(f1, f2) for every n, and the first term counts twice.

    Reads: advantage_B [B] float (the reward), budget_B, length_B [B] int, group_B [B] int,
    num_groups int, scored_B [B] bool, and correct_B [B] bool where given (else reward > 0);
    max_length [] int where L is 0.
    Writes: advantage_B.
    Source: arXiv 2507.15844 (budget-aware reward, hierarchical advantage); code ZJU-REAL/HBPO.
    Differs from the source: pi is exact, the code's is 3.1416.
    Nearest part: subtract_group_mean; equal to the second term's numerator.
    Edges: a budget above the longest answer -> UserError where L is 0; group of one -> its R in the
    second term; unscored rollouts -> 0 and in no mean.
    """

    # L, tokens: longer answers earn nothing; 0: the run's longest answer. Default: ours (in the
    # paper too it is the longest answer, 4096).
    L: int = 0
    # Height of the cosines, reward units. Default: paper (4).
    beta: float = 4.0
    # Added to the deviation. Default: released code.
    eps: float = 1e-6
    # "paper" or "code". Default: paper.
    source_form: str = "paper"

    def __post_init__(self) -> None:
        require(self, "L", low=0)
        require(self, "beta")
        require(self, "eps", low=0.0)
        require_one_of(self, "source_form", ("paper", "code"))

    @property
    def unread(self) -> frozenset[str]:
        """The run's longest answer is not read where L is set."""
        return frozenset({"max_length"}) if self.L else frozenset()

    def __call__(
        self,
        advantage_B: Tensor,
        budget_B: Tensor,
        length_B: Tensor,
        group_B: Tensor,
        scored_B: Tensor,
        num_groups: int,
        correct_B: Tensor | None = None,
        max_length: Tensor | None = None,
    ) -> Result:
        L = self.L or max_length
        if L is None:
            raise UserError("compare_budgets needs a length: set L, or give max_length")
        if not self.L and budget_B.numel() and int(budget_B.max()) > int(L):
            raise UserError(
                f"compare_budgets: a budget of {int(budget_B.max())} tokens is above the longest "
                f"answer, {int(L)}: set L, lower the budget or allow longer answers"
            )
        budget_N, length_N = budget_B.double(), length_B.double()
        full_B = self.beta * torch.cos(math.pi * budget_N / (2 * L))
        over_B = self.beta * torch.cos(math.pi * length_N / (2 * L))
        over_B = over_B - (length_N - budget_N).abs() / L
        if self.source_form == "code":
            paid_B = torch.minimum(over_B, full_B)
        else:
            paid_B = torch.where(length_N > budget_N, over_B, full_B)
        right_B = (advantage_B > 0) if correct_B is None else correct_B.bool()
        reward_B = torch.where(right_B & (length_N <= L), paid_B, 0)
        reward_B = torch.where(advantage_B < 0, advantage_B.double(), reward_B)
        reward_B = torch.where(scored_B, reward_B, 0)
        key_B, num_keys = segments.key_of(group_B, budget_B)
        within_B = segments.mean(reward_B, key_B, num_keys, scored_B)[key_B] - full_B
        std_P = segments.std(reward_B, group_B, num_groups, scored_B)
        alone_P = segments.count(group_B, num_groups, scored_B) == 1
        mean_P = torch.where(alone_P, 0, segments.mean(reward_B, group_B, num_groups, scored_B))
        std_P = torch.where(alone_P, 1.0, std_P)
        across_B = segments.divided(reward_B - mean_P[group_B], (std_P + self.eps)[group_B])
        times = 2 if self.source_form == "code" else 1
        found_B = (times * within_B + across_B).to(advantage_B.dtype)
        metrics = {
            "length_budget/frac_over": segments.overall(length_N > budget_N, scored_B),
            "length_budget/reward": segments.overall(reward_B, scored_B),
        }
        return Result(torch.where(scored_B, found_B, 0), metrics=metrics)
