"""Put the reward on another scale."""

from dataclasses import dataclass

from torch import Tensor

from strop.method.part import require


@dataclass(frozen=True)
class RescaleReward:
    """Rewards of 0 and 1 become -1 and 1, so that a wrong answer counts against itself.

        reward_i <- scale * reward_i + shift

    Reads: reward_B [B] float.   Writes: reward_B [B] float.
    Source: code only: lblaoke/entrocraft (its mathematics reward is -1 or 1).
    Differs from the source: no.
    Nearest part: none.
    Edges: outcome_B stays as it was. A baseline after it removes the shift again, a division by the
    deviation removes the scale.
    """

    # Factor. Default: ours (0 and 1 become -1 and 1).
    scale: float = 2.0
    # Added, reward units. Default: ours (0 and 1 become -1 and 1).
    shift: float = -1.0

    def __post_init__(self) -> None:
        require(self, "scale", "shift")

    def __call__(self, reward_B: Tensor) -> Tensor:
        return self.scale * reward_B + self.shift
