"""Let a token's push fade as its probability moves away from where it was."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.method.part import Result, require


@dataclass(frozen=True)
class BoundRatioSoftly:
    """No token is cut off: the weight falls smoothly to 0 on both sides of the ratio 1.

        objective_t = 4 / tau * sigmoid(tau * (rho_t - 1)) * A_t;   rho = exp(log_ratio)
        tau = tau_positive where A_t > 0, else tau_negative
        token weight = 4 p (1 - p) * rho_t * A_t with p the sigmoid: A_t at rho 1

    Reads: log_ratio_T [T] float, advantage_T [T] float.   Writes: objective_T [T] float.
    Source: arXiv 2511.20347 (the soft gate); code verl-project/verl core_algos.py (sapo).
    Differs from the source: no.
    Nearest part: clip_both_sides; equal gradient to it while the ratio is 1.
    Edges: advantage 0 -> objective 0. The value at ratio 1 is 2 A / tau, so losses with
    different tau cannot be compared.
    """

    scope: ClassVar[str] = "token"
    facts: ClassVar[frozenset[str]] = frozenset({"silent_at_zero_advantage"})
    # How fast the weight of good tokens fades; per unit of ratio. Default: paper.
    tau_positive: float = 1.0
    # How fast the weight of bad tokens fades; per unit of ratio. Default: paper.
    tau_negative: float = 1.05

    def __post_init__(self) -> None:
        require(self, "tau_positive", "tau_negative", low=1e-06)

    def __call__(self, log_ratio_T: Tensor, advantage_T: Tensor) -> Result:
        tau_T = torch.full_like(advantage_T, self.tau_negative)
        tau_T = tau_T.masked_fill(advantage_T > 0, self.tau_positive)
        side_T = torch.sigmoid(tau_T * (log_ratio_T.exp() - 1))
        weight_T = (4 * side_T * (1 - side_T)).detach()
        gate_T = side_T * 4 / tau_T
        return Result(gate_T * advantage_T, metrics={"soft_gate/weight_mean": weight_T})
