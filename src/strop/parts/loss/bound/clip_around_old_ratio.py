"""Learn from rollouts of older policies without moving far from the policy of the step."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.method.part import Result, require
from strop.parts.loss.bound._bounds import clip

FARTHEST = 20.0  # nats of a log-ratio, against overflow


@dataclass(frozen=True)
class ClipAroundOldRatio:
    """A token stops learning once it has moved far from the step's policy, whoever drew it.

        rho_t = exp(log_ratio_t), over the policy that drew the token; c_t = pi_old / that policy
        objective_t = min(rho_t A_t, clip(rho_t, c_t - clip_low, c_t + clip_high) A_t)
        relative: clip(rho_t, c_t (1 - clip_low), c_t (1 + clip_high))

    Reads: log_ratio_T, advantage_T, logp_old_T, logp_behavior_T [T] float.
    Writes: objective_T [T] float.
    Source: arXiv 2507.06892 (its policy loss for mixed rollouts); arXiv 2506.05316 (relative).
    Differs from the source: two widths where both sources have one.
    Nearest part: clip_both_sides; equal to it where the step's policy drew the token.
    Edges: a void (NaN) logp_behavior -> c 1; advantage 0 -> objective 0.
    """

    scope: ClassVar[str] = "token"
    facts: ClassVar[frozenset[str]] = frozenset({"silent_at_zero_advantage"})
    # Width below the centre, a ratio. Default: ours (the paper's was not found).
    clip_low: float = 0.2
    # Width above the centre, a ratio. Default: ours (the paper's was not found).
    clip_high: float = 0.2
    # Whether the widths are shares of the centre. Default: paper (arXiv 2507.06892: ratios).
    relative: bool = False

    def __post_init__(self) -> None:
        require(self, "clip_low", "clip_high", low=0.0)

    def __call__(
        self, log_ratio_T: Tensor, advantage_T: Tensor, logp_old_T: Tensor, logp_behavior_T: Tensor
    ) -> Result:
        apart_T = (logp_old_T - logp_behavior_T).nan_to_num(0.0).clamp(-FARTHEST, FARTHEST)
        centre_T = apart_T.detach().exp()
        unit_T = centre_T if self.relative else torch.ones_like(centre_T)
        bounds = (centre_T - self.clip_low * unit_T, centre_T + self.clip_high * unit_T)
        clipped = clip(log_ratio_T.exp(), advantage_T, *bounds, centre=centre_T)
        return Result(clipped.value, metrics=clipped.metrics)
