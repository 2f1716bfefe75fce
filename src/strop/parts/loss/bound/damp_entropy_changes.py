"""Learn less from the tokens whose update would change entropy most."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, require, require_one_of
from strop.method.schedule import Schedule
from strop.parts.loss.bound.clip_both_sides import ClipBothSides
from strop.support.errors import UserError

SMALLEST = 1e-8  # of a probability
FLOOR = 0.02  # of the largest change, below which the exponential form falls no faster


@dataclass(frozen=True)
class DampEntropyChanges(ClipBothSides):
    """Beside the usual clip, tokens count less the more their update moves entropy, up or down.

        objective_t = w_t * (that of clip_both_sides);   p = exp(logp_t), q = exp(logp_old_t)
        change_t = |A_t / q * p * (1 - p) * (log p + entropy_old_t)|, a_min and a_max its extremes
        linear: w = w_max - (change - a_min) / (a_max - a_min) * (w_max - w_min)
        exponential: w = clamp(exp(ln(w_min) * change / max(a_max, 0.02)), w_min, 1)

    Extremes are over gradient_T of the update; the weights carry no gradient.

    Reads: log_ratio_T [T], advantage_T [T], logp_T [T], logp_old_T [T], entropy_old_T [T] float,
    gradient_T [T] bool.   Writes: objective_T [T] float.
    Source: code only: zz-haooo/STEER (the method of arXiv 2510.10150).
    Differs from the source: extremes are of the update, the released code's of a micro-batch.
    Nearest part: clip_both_sides; equal to it when w_min = w_max = 1.
    Edges: linear, all changes equal -> (w_min + w_max) / 2; no token -> 0; p and q are held
    above 1e-8; one outlier decides all linear weights.
    """

    scope: ClassVar[str] = "update"
    facts: ClassVar[frozenset[str]] = frozenset()  # tokens without an advantage set a_min
    # "linear" or "exponential". Default: released code.
    mode: str = "linear"
    # Weight of the largest change. Default: released code.
    w_min: float = 0.8
    # Weight of the smallest change; the exponential form has 1. Default: released code.
    w_max: float = 1.2

    def __post_init__(self) -> None:
        super().__post_init__()
        require_one_of(self, "mode", ("linear", "exponential"))
        require(self, "w_min", "w_max", low=0.0)
        known = not isinstance(self.w_min, Schedule)
        if known and self.mode == "exponential" and not 0 < self.w_min <= 1:
            raise UserError(
                f"damp_entropy_changes.w_min must be above 0 and at most 1, it is {self.w_min}"
            )

    def __call__(  # type: ignore[override]
        self,
        log_ratio_T: Tensor,
        advantage_T: Tensor,
        logp_T: Tensor,
        logp_old_T: Tensor,
        entropy_old_T: Tensor,
        gradient_T: Tensor,
    ) -> Result:
        p_T = logp_T.detach().exp().clamp(SMALLEST, 1 - SMALLEST)
        q_T = logp_old_T.exp().clamp(SMALLEST, 1)
        change_T = (advantage_T / q_T * p_T * (1 - p_T) * (p_T.log() + entropy_old_T)).abs()
        change_T = torch.where(change_T.isfinite(), change_T, 0)
        weight_T = self._weights(change_T, gradient_T)
        clipped = super().__call__(log_ratio_T, advantage_T)
        metrics = {**clipped.metrics, "steer/weight_mean": weight_T, "steer/change_mean": change_T}
        return Result(clipped.value * weight_T, metrics=metrics)

    def _weights(self, change_T: Tensor, gradient_T: Tensor) -> Tensor:
        """Weights [T] without gradient, from the extremes of the tokens with gradient."""
        one_T = segments.one_key(gradient_T)
        high = segments.extreme(change_T, one_T, 1, gradient_T)
        if self.mode == "exponential":
            slope = math.log(self.w_min) / high.clamp(min=FLOOR)
            return (slope * change_T).exp().clamp(self.w_min, 1)
        low = segments.extreme(change_T, one_T, 1, gradient_T, largest=False)
        width = high - low
        share_T = torch.where(width > 0, (change_T - low) / torch.where(width > 0, width, 1), 0.5)
        bounds = sorted((self.w_min, self.w_max))
        return (self.w_max - share_T * (self.w_max - self.w_min)).clamp(*bounds)
