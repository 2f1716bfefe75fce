"""Let every rollout of the update weigh the same, however long it is."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop import segments


@dataclass(frozen=True)
class AveragePerSequence:
    """A token of a long answer weighs less than one of a short answer (seq-mean-token-mean).

        share_t = denominator_t / (tokens of its rollout that count * rollouts that count)

    Reads: denominator_T [T] bool, rollout_T [T] int.   Writes: share_T [T] float.
    Source: arXiv 2402.03300, eq. 3.
    Differs from the source: no; rollouts without a counting token do not count as rollouts.
    Nearest part: average_over_tokens; equal to it when all sequences are equally long.
    Edges: no token -> all shares 0.
    """

    def __call__(self, denominator_T: Tensor, rollout_T: Tensor) -> Tensor:
        num = int(rollout_T.max()) + 1 if rollout_T.numel() else 0
        count_B = segments.count(rollout_T, num, denominator_T)
        share_B = 1.0 / (count_B.clamp(min=1).double() * (count_B > 0).sum().clamp(min=1))
        return torch.where(denominator_T, share_B[rollout_T], 0.0)
