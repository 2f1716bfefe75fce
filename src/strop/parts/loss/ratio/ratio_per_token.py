"""Compare the current policy with the one before the update, token by token."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.method.part import Result, require


@dataclass(frozen=True)
class RatioPerToken:
    """Each token has its own importance ratio.

        log_ratio_t = clamp(logp_t - logp_old_t, -clamp_nats, clamp_nats)

    Reads: logp_T [T] float, logp_old_T [T] float; a recipe may name logp_behavior_T in place of
    the latter: the ratio is then to the policy that drew the token.
    Writes: log_ratio_T [T] float (nats).
    Source: arXiv 1707.06347, sec. 3.
    Differs from the source: clamped to +-20 nats before exp, as verl does, against overflow.
    Nearest part: ratio_per_sequence; equal to it when every sequence has one token.
    Edges: beyond the clamp the gradient is 0; over a void (NaN) the ratio is 1 with a gradient.
    """

    scope: ClassVar[str] = "token"
    # Largest absolute log-ratio, nats. Default: released code (verl).
    clamp_nats: float = 20.0

    def __post_init__(self) -> None:
        require(self, "clamp_nats", low=0.0)

    def __call__(self, logp_T: Tensor, logp_old_T: Tensor) -> Result:
        old_T = torch.where(logp_old_T.isnan(), logp_T, logp_old_T).detach()
        log_ratio_T = (logp_T - old_T).clamp(-self.clamp_nats, self.clamp_nats)
        moved_T = log_ratio_T.detach()
        metrics = {"ratio/log_abs_mean": moved_T.abs(), "approx_kl": moved_T.expm1() - moved_T}
        return Result(log_ratio_T, metrics=metrics)
