"""Partial credit for each condition, a bonus for all of them, and length as a cost or a gain."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from strop.method.part import require

TOO_LONG, ENOUGH = -2.0, 0.2


@dataclass(frozen=True)
class RewardAllOrLength:
    """An answer that meets every condition earns more than the sum of their points.

        s = reward_i + bonus * [every reward function that gave a number gave at least 1]
        long_at 0:        reward_i <- s
        length < long_at: reward_i <- 2 s x if s >= 0.2 else -x
        else:             reward_i <- -2;     x = (1 - cos(pi length / long_at)) / 2

    The points of a condition are the weight of its reward function.

    Reads: reward_B [B] float, reward_BM [B, M] float, length_B [B] int.   Writes: reward_B.
    Source: arXiv 2508.03178; code only: Qihoo360/Light-IF (IF.py).
    Differs from the source: no.
    Nearest part: penalise_overlong_softly, which only subtracts, near the limit.
    Edges: no function gave a number -> no bonus; outcome_B stays as it was.
    """

    # Added where all conditions hold, reward units. Default: released code (1).
    bonus: float = 1.0
    # Length from which an answer is too long, tokens; 0: length does not matter. Default: ours
    # (released code: 8192 in its first stage, no such term in its second).
    long_at: int = 0

    def __post_init__(self) -> None:
        require(self, "bonus")
        require(self, "long_at", low=0)

    def __call__(self, reward_B: Tensor, reward_BM: Tensor, length_B: Tensor) -> Tensor:
        given_BM = ~reward_BM.isnan()
        all_B = given_BM.any(1) & ((reward_BM >= 1) | ~given_BM).all(1)
        points_B = reward_B + self.bonus * all_B.to(reward_B.dtype)
        if not self.long_at:
            return points_B
        angle_B = length_B.to(reward_B.dtype) * (math.pi / self.long_at)
        rise_B = (1 - torch.cos(angle_B)) / 2
        shaped_B = torch.where(points_B >= ENOUGH, 2 * points_B * rise_B, -rise_B)
        return torch.where(length_B >= self.long_at, TOO_LONG, shaped_B)
