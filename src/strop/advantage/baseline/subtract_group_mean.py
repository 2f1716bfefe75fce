"""Centre each rollout's reward on the mean of its prompt's group."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop import segments
from strop.part import require_one_of


@dataclass(frozen=True)
class SubtractGroupMean:
    """A rollout learns from how much better it did than the average rollout of its prompt.

        advantage_i = reward_i - mean_{j in group} reward_j

    Reads: advantage_B [B] float, group_B [B] int, num_groups int, scored_B [B] bool.
    Writes: advantage_B [B] float.
    Source: arXiv 2402.03300, sec. 4.1.2 (the numerator of the outcome advantage).
    Differs from the source: no.
    Nearest part: subtract_leave_one_out_mean; equal to it times (G-1)/G.
    Edges: group of one -> by `singleton`; all equal -> exactly 0; unscored rollouts -> 0 and
    outside the mean.
    """

    # What a group of one gets: "raw" (its reward) or "zero". Default: released code (verl).
    singleton: str = "raw"

    def __post_init__(self) -> None:
        require_one_of(self, "singleton", ("raw", "zero"))

    def __call__(
        self, advantage_B: Tensor, group_B: Tensor, scored_B: Tensor, num_groups: int
    ) -> Tensor:
        centred_B = segments.centred(advantage_B, group_B, num_groups, scored_B)
        alone_B = segments.count(group_B, num_groups, scored_B)[group_B] == 1
        if self.singleton == "raw":
            centred_B = torch.where(alone_B, advantage_B, centred_B)
        return torch.where(scored_B, centred_B, 0)
