"""Compare each rollout's reward with a mean of its group that leans towards the best ones."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, require
from strop.parts.advantage.baseline._shift import shift_of


@dataclass(frozen=True)
class SubtractGroupLogMeanExp:
    """A rollout learns from its lead over a baseline between the group's mean and its best.

        advantage_i = reward_i - tau log mean_{j in group} exp(reward_j / tau)

    Reads: advantage_B [B] float, group_B [B] int, num_groups int, scored_B [B] bool.
    Writes: advantage_B [B] float.
    Source: arXiv 2601.03715; code only there: shiweijiezero/R3L (opmd_baseline "logavgexp").
    Differs from the source: no.
    Nearest part: subtract_group_mean; equal to it in the limit of large tau.
    Edges: group of one -> its reward; all equal -> 0; unscored rollouts -> 0, outside the mean.
    """

    facts: ClassVar[frozenset[str]] = frozenset({"advantage_mean_is_not_zero"})
    # Reward units within which a rollout counts as nearly the best. Default: released code.
    tau: float = 1.0

    def __post_init__(self) -> None:
        require(self, "tau", low=1e-6)

    def __call__(
        self, advantage_B: Tensor, group_B: Tensor, scored_B: Tensor, num_groups: int
    ) -> Result:
        members = (group_B, num_groups, scored_B)
        best_B = segments.extreme(advantage_B, *members, largest=True)[group_B]
        share_B = torch.where(scored_B, (advantage_B - best_B) / self.tau, 0).exp()
        level_B = self.tau * segments.mean(share_B, *members)[group_B].log()
        alone_B = (segments.count(*members) == 1)[group_B]
        compared_B = torch.where(alone_B, advantage_B, advantage_B - best_B - level_B)
        compared_B = torch.where(scored_B, compared_B, 0)
        return Result(compared_B, metrics=shift_of(compared_B, advantage_B, *members))
