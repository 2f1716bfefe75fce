"""Keep all of what a reference policy could do, judged on its own answers."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.method.part import Result, require, require_one_of
from strop.support.errors import UserError

CLAMP_NATS, MOST = 20.0, 10.0


@dataclass(frozen=True)
class CoverReference:
    """Tokens that the reference drew stay about as likely as they were under it.

        objective_t = -f(u_t), u = exp(logp - logp_ref)
        forward: u - ln u - 1                        mean over the reference: KL(ref || policy)
        js:      u ln u - (u + 1) ln((u + 1) / 2)    mean: twice the Jensen-Shannon divergence
        alpha:   (u^(1 - alpha) - (1 - alpha) u - alpha) / (alpha (alpha - 1))

    alpha -> 1 is KL(ref || policy), alpha -> 0 KL(policy || ref). It is a divergence only
    on tokens that the reference drew. ln u is held within +-20 and the value within +-10.

    Reads: logp_T [T] float, logp_ref_T [T] float.   Writes: objective_T [T] float (nats).
    Source: arXiv 2509.07430; code seamoke/DPH-RL (core_algos.py).
    Differs from the source: its code holds only the forward form within these bounds.
    Nearest part: penalise_kl_to_reference, whose k3 is a divergence on the policy's own tokens.
    Edges: u = 1, or a void (NaN) logp_ref -> 0; no gradient beyond the bounds, none to the
    reference.
    """

    scope: ClassVar[str] = "token"
    # "forward", "js" or "alpha". Default: paper (DPH-F; DPH-JS is its other main form).
    divergence: str = "forward"
    # Parameter of the divergence "alpha", between 0 and 1. Default: paper (0.2).
    alpha: float = 0.2

    def __post_init__(self) -> None:
        require_one_of(self, "divergence", ("forward", "js", "alpha"))
        require(self, "alpha", low=0.0, high=1.0)
        if self.divergence == "alpha" and self.alpha in (0.0, 1.0):
            raise UserError(f"cover_reference.alpha must lie between 0 and 1, it is {self.alpha}")

    def __call__(self, logp_T: Tensor, logp_ref_T: Tensor) -> Result:
        gap_T = torch.where(logp_ref_T.isnan(), 0, logp_T - logp_ref_T.detach())
        log_u_T = gap_T.clamp(-CLAMP_NATS, CLAMP_NATS)
        value_T = self._divergence(log_u_T).clamp(-MOST, MOST)
        return Result(-value_T, metrics={"rehearsal/divergence": value_T.detach()})

    def _divergence(self, log_u_T: Tensor) -> Tensor:
        u_T = log_u_T.exp()
        if self.divergence == "forward":
            return u_T - log_u_T - 1
        if self.divergence == "js":
            middle_T = torch.logaddexp(log_u_T, torch.zeros_like(log_u_T)) - math.log(2)
            return u_T * log_u_T - (u_T + 1) * middle_T
        rest = 1 - self.alpha
        powered_T = (rest * log_u_T).exp()
        return (powered_T - rest * u_T - self.alpha) / (self.alpha * -rest)
