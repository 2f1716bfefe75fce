"""Stop pushing a token once its log-probability has moved far, and judge answers as a whole."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, require


@dataclass(frozen=True)
class ClipGeometricMean:
    """All tokens of a rollout share one weight, the geometric mean of their clipped ratios.

        s_t = sign(A_t);   y_t = s_t * min(s_t x_t, s_t clip(x_t, -clip_low, clip_high))
        objective_t = mean_{s in rollout of t} A_s * exp(mean_{s in rollout of t} y_s)

    x is the log-ratio; means are over the rollout's policy tokens. One extreme token moves the
    mean little, so the band may be wide. Meant for averages that weigh rollouts alike.

    Reads: log_ratio_T [T] float, advantage_T [T] float, mask_T [T] bool, rollout_T [T] int,
    num_rollouts int.   Writes: objective_T [T] float.
    Source: arXiv 2507.20673 (the clipped geometric mean); code verl-project/verl core_algos.py.
    Differs from the source: no.
    Nearest part: clip_both_sides on ratio_per_sequence, which clips the mean, not the tokens.
    Edges: no policy token -> objective 0; a clipped token has no gradient of its own.
    """

    scope: ClassVar[str] = "rollout"
    # Width below, nats of the log-ratio. Default: paper.
    clip_low: float = 0.4
    # Width above, nats of the log-ratio. Default: paper.
    clip_high: float = 0.4

    def __post_init__(self) -> None:
        require(self, "clip_low", "clip_high", low=0.0)

    def __call__(
        self,
        log_ratio_T: Tensor,
        advantage_T: Tensor,
        mask_T: Tensor,
        rollout_T: Tensor,
        num_rollouts: int,
    ) -> Result:
        sign_T = advantage_T.sign()
        bound_T = log_ratio_T.clamp(-self.clip_low, self.clip_high)
        clipped_T = sign_T * bound_T < sign_T * log_ratio_T
        kept_T = torch.where(clipped_T, bound_T, log_ratio_T)
        kept_T = torch.where(sign_T == 0, 0, kept_T)
        ratio_B = segments.mean(kept_T, rollout_T, num_rollouts, mask_T).exp()
        advantage_B = segments.mean(advantage_T, rollout_T, num_rollouts, mask_T)
        metrics = {
            "clip_ratio/low_mean": (clipped_T & (log_ratio_T < 0)).float(),
            "clip_ratio/high_mean": (clipped_T & (log_ratio_T > 0)).float(),
            "clip_ratio/region_mean": clipped_T.float(),
        }
        return Result((advantage_B * ratio_B)[rollout_T], metrics=metrics)
