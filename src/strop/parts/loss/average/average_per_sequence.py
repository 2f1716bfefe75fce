"""Let every rollout of the update weigh the same, however long it is."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import require


@dataclass(frozen=True)
class AveragePerSequence:
    """A token of a long answer weighs less than one of a short answer (seq-mean-token-mean).

        share_t = denominator_t / (tokens of its rollout that count * rollouts that count)

    With num_rollouts the second factor is that number, so that a selection makes the step smaller.

    Reads: denominator_T [T] bool, rollout_T [T] int, num_rollouts int.   Writes: share_T [T] float.
    Source: arXiv 2402.03300, eq. 3.
    Differs from the source: no; rollouts without a counting token do not count as rollouts.
    Nearest part: average_over_tokens; equal to it when all sequences are equally long.
    Edges: no token -> all shares 0.
    """

    # Fixed number of rollouts to divide by; 0: those that count. Default: paper (those that count).
    num_rollouts: int = 0

    def __post_init__(self) -> None:
        require(self, "num_rollouts", low=0)

    @property
    def equals(self) -> dict[str, str]:
        """A fixed number is that of each update, where a plan has one."""
        return {"num_rollouts": "plan.split_into_rollouts.size"} if self.num_rollouts else {}

    def __call__(self, denominator_T: Tensor, rollout_T: Tensor, num_rollouts: int) -> Tensor:
        count_B = segments.count(rollout_T, num_rollouts, denominator_T)
        counting = self.num_rollouts or (count_B > 0).sum().clamp(min=1)
        share_B = 1.0 / (count_B.clamp(min=1).double() * counting)
        return torch.where(denominator_T, share_B[rollout_T], 0.0)
