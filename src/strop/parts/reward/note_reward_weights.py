"""Store the weights of the reward functions for parts that add rewards up themselves."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from strop.batch.columns import Column
from strop.method.services import Grading


@dataclass(frozen=True)
class NoteRewardWeights:
    """No reward changes: later parts see the weight of each reward function in the outcome.

        reward_weight_im = weight_m of the run

    Reads: reward_BM [B, M] float, grading (the weights).
    Writes: reward_weight_BM [B, M] float.
    Source: none (TRL's reward_weights, where they are an argument of the trainer).
    Differs from the source: no.
    Nearest part: score_with_verifiers, which adds the rewards up with these weights.
    Edges: an environment's own reward, which comes first, counts 1.
    """

    writes: ClassVar[tuple[str, ...]] = ("reward_weight_BM",)
    declares: ClassVar[tuple[Column, ...]] = (
        Column(
            "reward_weight_BM",
            "float",
            "weight of each named reward in the sum",
            door=("reward_weights",),
            random="uniform",
        ),
    )

    def __call__(self, reward_BM: Tensor, grading: Grading) -> Tensor:
        return reward_BM.new_tensor(grading.reward_weights).expand(reward_BM.shape)
