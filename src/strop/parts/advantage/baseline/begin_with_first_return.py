"""Let the return at a rollout's first turn stand for its reward."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.columns import Column


@dataclass(frozen=True)
class BeginWithFirstReturn:
    """Rollouts are compared by their discounted rewards: what came early counts more.

        advantage_i = score_i = return of the first turn of i

    Reads: return_K [K] float, rollout_K [K] int, num_rollouts int, scored_B [B] bool.
    Writes: advantage_B, score_B [B] float.
    Source: code only: kfq20/InfoPO (its trajectory_score_method "R2G").
    Differs from the source: no.
    Nearest part: none.
    Edges: unscored rollouts and those without turns -> 0.
    """

    writes: ClassVar[tuple[str, ...]] = ("advantage_B", "score_B")
    declares: ClassVar[tuple[Column, ...]] = (
        Column("score_B", "float", "score by which the rollout is compared", "reward", door=None),
    )

    def __call__(
        self, return_K: Tensor, rollout_K: Tensor, scored_B: Tensor, num_rollouts: int
    ) -> tuple[Tensor, Tensor]:
        first_B = segments.first(rollout_K, num_rollouts)
        # A rollout without turns has the row after the last one, which holds 0.
        return_K = torch.cat([return_K, return_K.new_zeros(1)])
        score_B = torch.where(scored_B, return_K[first_B], 0)
        return score_B, score_B
