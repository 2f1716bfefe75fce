"""Take larger steps where an update has more rollouts."""

from dataclasses import dataclass

from torch import Tensor

from strop.method.part import Result, require


@dataclass(frozen=True)
class ScaleStepByRollouts:
    """The learning rate grows with the root of the number of rollouts that an update learns from.

        lr_scale = sqrt(B / base), B the scored rollouts of the update

    Metric: rate/lr_scale.

    Reads: scored_B [B] bool.   Writes: lr_scale.
    Source: arXiv 2510.01180 (lr sqrt(B_new / B_0)).
    Differs from the source: counts the rollouts that curation left, there those sampled.
    Nearest part: shrink_step_by_sample_size, which uses their weights.
    Edges: no scored rollout -> 1.
    """

    # Rollouts of an update for which the learning rate is meant. Default: ours (32 times 16).
    base: int = 512

    def __post_init__(self) -> None:
        require(self, "base", low=1)

    def __call__(self, scored_B: Tensor) -> Result:
        number = int(scored_B.sum())
        scale = (number / self.base) ** 0.5 if number else 1.0
        return Result(scale, metrics={"rate/lr_scale": scale})
