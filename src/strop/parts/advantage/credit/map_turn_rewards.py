"""Credit every turn by its own reward, and a turn without one with half."""

import math
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from strop.method.part import require


@dataclass(frozen=True)
class MapTurnRewards:
    """A turn's reward raises its credit from 1/2 to 1, fastest while it is small.

        credit_k = 1/2 + 1/2 (1 - exp(-bend reward_k)) / (1 - exp(-bend))

    Reads: reward_K [K] float, from 0 to 1.   Writes: credit_K [K] float.
    Source: code only: kfq20/InfoPO (its turn_level_method "EM").
    Differs from the source: not rounded to four digits.
    Nearest part: discount_turn_rewards, whose credit is of the later turns too.
    Edges: reward 0 -> 1/2; reward 1 -> 1; rewards below 0 are not refused: their credit falls
    exponentially, at bend 2 below 0 from -0.31 on.
    """

    writes: ClassVar[tuple[str, ...]] = ("credit_K",)
    # How fast the credit rises. Default: released code (2).
    bend: float = 2.0

    def __post_init__(self) -> None:
        require(self, "bend", low=1e-6)

    def __call__(self, reward_K: Tensor) -> Tensor:
        # expm1, since 1 - exp cancels at a small bend
        return (1 + (-self.bend * reward_K).expm1() / math.expm1(-self.bend)) / 2
