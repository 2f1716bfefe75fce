"""Write the reward down where an advantage that stays with its rollout is made of it."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from strop.batch.columns import Column


@dataclass(frozen=True)
class NoteReward:
    """A rollout's advantage among its own peers is there before curation; here it begins.

        made_advantage_i = reward_i

    Parts of the advantage stage stand after it, named to read and write made_advantage_B.

    Reads: reward_B [B] float.   Writes: made_advantage_B [B] float.
    Source: code only: TIGER-AI-Lab/VL-Rethinker (what is stored has its advantage).
    Differs from the source: no.
    Nearest part: rescale_reward, which changes the reward itself.
    Edges: unscored rollouts -> what their reward is, the parts after it make 0 of it.
    """

    writes: ClassVar[tuple[str, ...]] = ("made_advantage_B",)
    declares: ClassVar[tuple[Column, ...]] = (
        Column(
            "made_advantage_B", "float", "reward as it was when noted", "reward", random="uniform"
        ),
    )

    def __call__(self, reward_B: Tensor) -> Tensor:
        return reward_B.clone()
