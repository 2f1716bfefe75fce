"""Take smaller steps where clipping has bent the gradient."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, require
from strop.parts.loss.bound._bounds import clip


@dataclass(frozen=True)
class ShrinkByClippingBias:
    """An update is shrunk by the size of what its clip has cut off.

        objective_t = min(rho_t A_t, clip(rho_t, 1 - clip_low, 1 + clip_high) A_t) / norm
        norm = || 1{t clipped} rho_t A_t / |y_t| ||_2 over gradient_T of the update, |y_t| such
        tokens of t's rollout; 1 where it is below `floor` or nothing is clipped

    Metrics: clip_bias/norm and, after the floor, clip_bias/factor (1 / norm).

    Reads: log_ratio_T, advantage_T [T] float, gradient_T [T] bool, rollout_T [T] int, num_rollouts
    int.   Writes: objective_T [T] float.
    Source: arXiv 2511.20718, eq. 7 and 8.
    Differs from the source: 1. the norm is of the vector of per-token terms, not of a parameter
    gradient (the text does not settle it; this needs no second backward pass); 2. the floor, which
    keeps a small norm from making the step explode, is ours.
    Nearest part: clip_both_sides; equal to it where nothing is clipped.
    Edges: the norm gets no gradient; advantage 0 -> objective 0.
    """

    scope: ClassVar[str] = "update"
    facts: ClassVar[frozenset[str]] = frozenset({"silent_at_zero_advantage"})
    # Width below 1, a share of the ratio. Default: paper.
    clip_low: float = 0.2
    # Width above 1, a share of the ratio. Default: paper.
    clip_high: float = 0.2
    # Smallest norm that is divided by. Default: ours (1: steps only ever shrink).
    floor: float = 1.0

    def __post_init__(self) -> None:
        require(self, "clip_low", "clip_high", "floor", low=0.0)

    def __call__(
        self,
        log_ratio_T: Tensor,
        advantage_T: Tensor,
        gradient_T: Tensor,
        rollout_T: Tensor,
        num_rollouts: int,
    ) -> Result:
        ratio_T = log_ratio_T.exp()
        clipped = clip(ratio_T, advantage_T, 1 - self.clip_low, 1 + self.clip_high)
        length_T = segments.count(rollout_T, num_rollouts, gradient_T).clamp(min=1)[rollout_T]
        free_T = (ratio_T * advantage_T).detach()
        cut_T = torch.where(clipped.held_T & gradient_T, free_T / length_T, 0)
        norm = cut_T.double().square().sum().sqrt().to(free_T.dtype)
        factor = torch.where((norm > 0) & (norm >= self.floor), 1 / norm, torch.ones_like(norm))
        metrics = {**clipped.metrics, "clip_bias/norm": norm, "clip_bias/factor": factor}
        return Result(clipped.value * factor, metrics=metrics)
