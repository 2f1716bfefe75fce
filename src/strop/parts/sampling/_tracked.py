"""What is known of prompts before a step: the success of their earlier answers."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from strop.batch.segments import find


@dataclass(frozen=True)
class Tracked:
    """Sums over each prompt's earlier answers, as they count at the start of a step.

    All are [N] float64, one entry per prompt of the sorted `uid_N`. right_N, wrong_N: numbers of
    answers, faded. success_N: mean success so far, by the tracker's rule. answers_N: all answers
    ever scored.
    """

    uid_N: Tensor
    right_N: Tensor
    wrong_N: Tensor
    success_N: Tensor
    answers_N: Tensor

    def of(self, uids: Sequence[int]) -> "Tracked":
        """The sums of the prompts `uids`, in their order; unseen ones: 0, and success NaN."""
        uid_N = torch.tensor(list(uids), dtype=torch.int64)
        row_N, known_N = find(self.uid_N, uid_N)

        def taken(column: Tensor, otherwise: float = 0.0) -> Tensor:
            if not self.uid_N.numel():
                return torch.full((len(uid_N),), otherwise, dtype=torch.float64)
            return torch.where(known_N, column[row_N], otherwise)

        return Tracked(
            uid_N,
            taken(self.right_N),
            taken(self.wrong_N),
            taken(self.success_N, float("nan")),
            taken(self.answers_N),
        )
