"""Put the reward of a turn on the token that ends it."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments


@dataclass(frozen=True)
class PlaceTurnRewards:
    """An estimator over tokens finds each turn's reward where the turn is complete.

        reward_t = reward_{turn of t} if t is the last policy token of its turn, else 0

    Reads: reward_K [K] float, turn_T [T] int, mask_T [T] bool.   Writes: reward_T [T] float.
    Source: arXiv 2504.16129; code jwliao-ai/MARFT (token_level_buffer.py).
    Differs from the source: no.
    Nearest part: spread_turns, which gives all tokens of a turn the same.
    Edges: a turn without a policy token loses its reward.
    """

    writes: ClassVar[tuple[str, ...]] = ("reward_T",)

    def __call__(self, reward_K: Tensor, turn_T: Tensor, mask_T: Tensor) -> Tensor:
        last_T = segments.is_last(turn_T, reward_K.shape[0], mask_T)
        return torch.where(last_T, reward_K[turn_T], 0)
