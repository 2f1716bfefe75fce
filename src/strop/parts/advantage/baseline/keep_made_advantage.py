"""Give rollouts the advantage that they had among the peers they were drawn with."""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class KeepMadeAdvantage:
    """A replayed or repeated rollout is not compared again with the rollouts now beside it.

        advantage_i <- made_advantage_i

    Reads: advantage_B, made_advantage_B [B] float (optional), scored_B [B] bool.
    Writes: advantage_B [B] float.
    Source: code only: TIGER-AI-Lab/VL-Rethinker (stored rows keep their advantages).
    Differs from the source: no.
    Nearest part: subtract_group_mean, which compares with the group as it is now.
    Edges: no made_advantage_B (all rollouts are new) -> advantages stay; unscored rollouts -> 0.
    """

    def __call__(
        self, advantage_B: Tensor, scored_B: Tensor, made_advantage_B: Tensor | None = None
    ) -> Tensor:
        made_B = advantage_B if made_advantage_B is None else made_advantage_B
        return torch.where(scored_B, made_B, 0)
