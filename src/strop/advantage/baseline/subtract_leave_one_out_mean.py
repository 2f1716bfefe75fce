"""Centre each rollout's reward on the mean of the other rollouts of its prompt."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop import segments
from strop.part import require_one_of


@dataclass(frozen=True)
class SubtractLeaveOneOutMean:
    """A rollout learns from how much better it did than the others of its prompt on average.

        advantage_i = reward_i - mean_{j in group, j != i} reward_j
                    = G / (G - 1) * (reward_i - mean_{j in group} reward_j)

    Reads: advantage_B [B] float, group_B [B] int, num_groups int, scored_B [B] bool.
    Writes: advantage_B [B] float.
    Source: arXiv 2402.14740 (the RLOO estimator).
    Differs from the source: no; computed by the second line, so equal rewards give exactly 0.
    Nearest part: subtract_group_mean; equal to it times G / (G - 1), which differs from group to
    group when groups are ragged.
    Edges: group of one -> by `singleton`; all equal -> exactly 0; unscored rollouts -> 0 and
    outside the mean.
    """

    # What a group of one gets: "raw" (its reward) or "zero". Default: released code (verl's loop
    # form; its vectorised form has zero).
    singleton: str = "raw"

    def __post_init__(self) -> None:
        require_one_of(self, "singleton", ("raw", "zero"))

    def __call__(
        self, advantage_B: Tensor, group_B: Tensor, scored_B: Tensor, num_groups: int
    ) -> Tensor:
        others_B = segments.leave_one_out_mean(advantage_B, group_B, num_groups, scored_B)
        if self.singleton == "zero":
            alone_B = segments.count(group_B, num_groups, scored_B)[group_B] == 1
            others_B = torch.where(alone_B, advantage_B, others_B)
        return torch.where(scored_B, advantage_B - others_B, 0)
