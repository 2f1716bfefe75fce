"""Stop pushing a token once its probability has moved far enough."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from strop.method.part import Result, require
from strop.parts.loss.bound._bounds import clip, dual_clipped, unlogged


@dataclass(frozen=True)
class ClipBothSides:
    """A token stops learning when its ratio leaves the band on the side its advantage favours.

        objective_t = min(rho_t * A_t, clip(rho_t, 1 - clip_low, 1 + clip_high) * A_t)
        and, with dual_clip_c > 1 and A_t < 0, at least dual_clip_c * A_t;  rho = exp(log_ratio)

    Reads: log_ratio_T [T] float, advantage_T [T] float.   Writes: objective_T [T] float.
    Source: arXiv 1707.06347, eq. 7; unequal widths arXiv 2503.14476, eq. 10; dual clip arXiv
    1912.09729, eq. 5.
    Differs from the source: no. At a tie the gradient follows the unclipped branch.
    Nearest part: weight_by_clipped_ratio, whose clipped tokens keep a gradient.
    Edges: advantage 0 -> objective 0; dual_clip_c 0 switches the dual clip off.
    """

    scope: ClassVar[str] = "token"
    facts: ClassVar[frozenset[str]] = frozenset({"silent_at_zero_advantage"})
    # Width below 1, a share of the ratio. Default: paper (sec. 6.1).
    clip_low: float = 0.2
    # Width above 1, a share of the ratio. Default: paper (sec. 6.1).
    clip_high: float = 0.2
    # Largest ratio on negative advantages, above 1; 0: none. Default: paper (PPO has none).
    dual_clip_c: float = 0.0

    def __post_init__(self) -> None:
        require(self, "clip_low", "clip_high", "dual_clip_c", low=0.0)

    @property
    def unlogged(self) -> frozenset[str]:
        """The metric of the dual clip, where there is none."""
        return unlogged(self.dual_clip_c)

    def __call__(self, log_ratio_T: Tensor, advantage_T: Tensor) -> Result:
        clipped = clip(log_ratio_T.exp(), advantage_T, 1 - self.clip_low, 1 + self.clip_high)
        clipped = dual_clipped(clipped, advantage_T, self.dual_clip_c)
        return Result(clipped.value, metrics=clipped.metrics)
