"""Pay right answers for being short."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.method.part import require


@dataclass(frozen=True)
class RewardShortRightAnswers:
    """A right answer earns more the shorter it is; a wrong one earns nothing for that.

        reward_i <- reward_i + max(0, 1 - length_i / length)   where outcome_i >= success

    Reads: reward_B, outcome_B [B] float, length_B [B] int.   Writes: reward_B [B] float.
    Source: arXiv 2601.19620, reward section.
    Differs from the source: no.
    Nearest part: penalise_overlong_softly, which charges long answers, right or wrong.
    Edges: an answer of `length` tokens or more -> nothing; outcome stays as it is.
    """

    # Length from which there is no bonus, tokens. Default: paper (32768).
    length: int = 32768
    # Outcome from which an answer is right. Default: paper (1, of rewards in {0, 1}).
    success: float = 1.0

    def __post_init__(self) -> None:
        require(self, "length", low=1)
        require(self, "success")

    def __call__(self, reward_B: Tensor, outcome_B: Tensor, length_B: Tensor) -> Tensor:
        bonus_B = (1 - length_B.to(reward_B.dtype) / self.length).clamp(min=0)
        return torch.where(outcome_B >= self.success, reward_B + bonus_B, reward_B)
