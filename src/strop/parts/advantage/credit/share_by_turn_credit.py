"""Share a rollout's advantage out over its turns, in proportion to their credits."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.columns import Column


@dataclass(frozen=True)
class ShareByTurnCredit:
    """Turns that are credited with more take more of the rollout's praise or blame.

        advantage_t = advantage_i * credit_k * n_i / sum_{t in i} credit_{turn of t}
        n_i = the rollout's policy tokens whose turn has a credit other than 0: over these the mean
        of advantage_t is advantage_i

    Reads: advantage_B [B] float, credit_K [K] float, turn_T, rollout_T [T] int, mask_T [T] bool,
    num_rollouts int.   Writes: advantage_T [T] float.
    Source: code only: kfq20/InfoPO (the method of arXiv 2603.00656).
    Differs from the source: no.
    Nearest part: spread_evenly; equal to it where a rollout's turns have one credit, other than 0.
    Edges: credits that add up to 0 -> 0 on all tokens of the rollout; masked tokens get 0.
    """

    declares: ClassVar[tuple[Column, ...]] = (
        Column("credit_K", "float", "weight of a turn in its rollout's advantage", "reward"),
    )

    def __call__(
        self,
        advantage_B: Tensor,
        credit_K: Tensor,
        turn_T: Tensor,
        rollout_T: Tensor,
        mask_T: Tensor,
        num_rollouts: int,
    ) -> Tensor:
        credit_T = credit_K[turn_T]
        sum_B = segments.total(credit_T, rollout_T, num_rollouts, mask_T)
        size_B = segments.count(rollout_T, num_rollouts, mask_T & (credit_T != 0))
        factor_B = torch.where(sum_B != 0, advantage_B * size_B / sum_B, 0)
        return torch.where(mask_T, factor_B[rollout_T] * credit_T, 0)
