"""Let the data's own preference be the reward of given answers."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor


@dataclass(frozen=True)
class RewardPreferred:
    """An answer that the data prefer, or show alone, has reward 1; a rejected one has reward 0.

        reward_i = 1 if preferred_i > 0 else 0

    Reads: preferred_B [B] int.   Writes: outcome_B, reward_B [B] float, scored_B [B] bool.
    Source: none; it makes given answers rollouts like any other.
    Differs from the source: no.
    Nearest part: score_with_verifiers, which calls reward functions.
    Edges: none; every row is scored.
    """

    writes: ClassVar[tuple[str, ...]] = ("outcome_B", "reward_B", "scored_B")

    def __call__(self, preferred_B: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        reward_B = (preferred_B > 0).to(torch.float32)
        return reward_B, reward_B.clone(), torch.ones_like(preferred_B, dtype=torch.bool)
