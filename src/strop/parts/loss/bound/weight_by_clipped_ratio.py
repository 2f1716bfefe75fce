"""Limit how much a token counts, but never stop it from learning."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from strop.method.part import Result, require


@dataclass(frozen=True)
class WeightByClippedRatio:
    """Every token keeps a gradient; its importance weight is cut to a band.

        objective_t = sg[clip(rho_t, 1 - clip_low, 1 + clip_high)] * A_t * logp_t
        rho = exp(log_ratio);  token weight = clip(rho_t) * A_t

    Reads: log_ratio_T [T] float, logp_T [T] float, advantage_T [T] float.
    Writes: objective_T [T] float.
    Source: arXiv 2506.13585, eq. 4 and 5.
    Differs from the source: no. An absolute upper bound h (TRL, ScaleRL) is clip_high = h - 1.
    Nearest part: clip_both_sides, whose clipped tokens lose their gradient; equal gradient to it
    while the ratio is 1.
    Edges: clip_low of 1 or more -> no lower bound; advantage 0 -> objective 0. The value is not a
    surrogate of the reward and has no bound.
    """

    scope: ClassVar[str] = "token"
    facts: ClassVar[frozenset[str]] = frozenset({"silent_at_zero_advantage"})
    # Width below 1, a share of the ratio. Default: released code (verl's example: no bound).
    clip_low: float = 10.0
    # Width above 1, a share of the ratio. Default: released code (verl's example).
    clip_high: float = 0.2

    def __post_init__(self) -> None:
        require(self, "clip_low", "clip_high", low=0.0)

    def __call__(self, log_ratio_T: Tensor, logp_T: Tensor, advantage_T: Tensor) -> Result:
        ratio_T = log_ratio_T.detach().exp()
        low_T, high_T = ratio_T < 1 - self.clip_low, ratio_T > 1 + self.clip_high
        weight_T = ratio_T.clamp(1 - self.clip_low, 1 + self.clip_high)
        metrics = {
            "clip_ratio/low_mean": low_T.float(),
            "clip_ratio/high_mean": high_T.float(),
            "clip_ratio/region_mean": (low_T | high_T).float(),
        }
        return Result(weight_T * advantage_T * logp_T, metrics=metrics)
