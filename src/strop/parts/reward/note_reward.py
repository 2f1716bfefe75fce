"""Copy the reward into the column of the advantage that stays with its rollout."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from strop.batch.columns import Column


@dataclass(frozen=True)
class NoteReward:
    """A rollout's advantage among its own peers is computed before curation; it starts here.

        made_advantage_i = reward_i

    Parts of the advantage stage follow it, set to read and write made_advantage_B.

    Reads: reward_B [B] float.   Writes: made_advantage_B [B] float.
    Source: code only: TIGER-AI-Lab/VL-Rethinker (stored rollouts have their advantage).
    Differs from the source: no.
    Nearest part: rescale_reward, which changes the reward itself.
    Edges: unscored rollouts -> their reward, which the parts after it set to 0.
    """

    writes: ClassVar[tuple[str, ...]] = ("made_advantage_B",)
    declares: ClassVar[tuple[Column, ...]] = (
        Column(
            "made_advantage_B", "float", "reward as it was when noted", "reward", random="uniform"
        ),
    )

    def __call__(self, reward_B: Tensor) -> Tensor:
        return reward_B.clone()
