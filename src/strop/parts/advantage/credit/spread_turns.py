"""Give every policy token its turn's advantage, and shares of a second one or its rollout's."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch.columns import Column
from strop.method.part import present, require


@dataclass(frozen=True)
class SpreadTurns:
    """All tokens of a turn are credited alike, by how the turn and how the whole rollout went.

        advantage_t = turn_weight * advantage_{its turn} + second_weight * second_{its turn}
                      + rollout_weight * advantage_{its rollout}

    Reads: advantage_K [K] float, turn_T, rollout_T [T] int, mask_T [T] bool; second_advantage_K
    [K] float and advantage_B [B] float where their weights are not 0.
    Writes: advantage_T [T] float.
    Source: arXiv 2601.10712 (both levels on every token of a turn).
    Differs from the source: no.
    Nearest part: spread_evenly, which knows rollouts only.
    Edges: masked tokens get 0.
    """

    declares: ClassVar[tuple[Column, ...]] = (
        Column(
            "second_advantage_K",
            "float",
            "another advantage of a turn, among other peers",
            "reward",
            door=None,
        ),
    )

    # Weight of the turn's advantage. Default: ours (1).
    turn_weight: float = 1.0
    # Weight of the turn's second advantage. Default: ours (0).
    second_weight: float = 0.0
    # Weight of the rollout's advantage. Default: ours (0).
    rollout_weight: float = 0.0

    def __post_init__(self) -> None:
        require(self, "turn_weight", "second_weight", "rollout_weight")

    @property
    def any_of(self) -> tuple[tuple[str, ...], ...]:
        """The second advantage and the rollout's, where they have a weight."""
        needed = {
            "second_advantage_K": self.second_weight,
            "advantage_B": self.rollout_weight,
        }
        return tuple((name,) for name, weight in needed.items() if weight)

    def __call__(
        self,
        advantage_K: Tensor,
        turn_T: Tensor,
        mask_T: Tensor,
        rollout_T: Tensor,
        second_advantage_K: Tensor | None = None,
        advantage_B: Tensor | None = None,
    ) -> Tensor:
        advantage_T = self.turn_weight * advantage_K[turn_T]
        if self.second_weight:
            advantage_T = advantage_T + self.second_weight * present(second_advantage_K)[turn_T]
        if self.rollout_weight:
            advantage_T = advantage_T + self.rollout_weight * present(advantage_B)[rollout_T]
        return torch.where(mask_T, advantage_T, 0)
