"""Pull the most and the least uncertain tokens of an answer towards its other tokens."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result
from strop.support.errors import UserError


@dataclass(frozen=True)
class HoldEntropyBetweenQuantiles:
    """Entropy outside a band of the rollout's own tokens costs its distance from the band.

        objective_t = -relu(entropy_t - high_i) - relu(low_i - entropy_t)
        low_i, high_i: quantiles of entropy over rollout i's tokens with gradient_T, held constant

    Since the bounds are quantiles of the same tokens, some are always outside. The metric
    `entropy_control/band_excess` is the mean of -objective.

    Reads: entropy_T [T] float, gradient_T [T] bool, rollout_T [T] int, num_rollouts int.
    Writes: objective_T [T] float (nats).
    Source: arXiv 2511.17938 (entropy-band regularisation).
    Differs from the source: no.
    Nearest part: reward_entropy, whose corridor is drawn around the run's past.
    Edges: one token, or all equal -> 0; at a bound its gradient is 0.
    """

    scope: ClassVar[str] = "rollout"
    # Levels of the two quantiles. Default: paper.
    levels: tuple[float, float] = (0.1, 0.5)

    def __post_init__(self) -> None:
        if len(self.levels) != 2 or not 0 <= self.levels[0] <= self.levels[1] <= 1:
            raise UserError(
                "hold_entropy_between_quantiles.levels must be two shares, the lower one first: "
                f"{self.levels}"
            )

    def __call__(
        self, entropy_T: Tensor, gradient_T: Tensor, rollout_T: Tensor, num_rollouts: int
    ) -> Result:
        fixed_T = entropy_T.detach()
        bounds = segments.quantiles(fixed_T, rollout_T, num_rollouts, self.levels, gradient_T)
        low_T, high_T = (bound_B[rollout_T] for bound_B in bounds)
        above_T, below_T = gradient_T & (fixed_T > high_T), gradient_T & (fixed_T < low_T)
        excess_T = torch.where(above_T, entropy_T - high_T, 0)
        excess_T = excess_T + torch.where(below_T, low_T - entropy_T, 0)
        return Result(-excess_T, metrics={"entropy_control/band_excess": excess_T.detach()})
