"""Learn somebody else's answer by a bounded ratio, and most where the policy did not expect it."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.method.part import Result, require


@dataclass(frozen=True)
class WeighByMixtureRatio:
    """Tokens of an unknown policy are learned by a ratio that stays bounded, unexpected ones more.

        p_w = (1 - uniform) p_old + uniform         the unknown policy's probability, estimated
        r_t = 2 p / (p_w + p_old),  p = exp(logp)   over the mixture of that policy and the old one
        objective_t = A_t * r_t * sg(1 - p)^gamma

    Gradient flows through p in r alone; r <= 2 / uniform, so there is no clip. Metric
    demonstrations/ratio: mean r.

    Reads: logp_T, logp_old_T [T] float, advantage_T [T] float.   Writes: objective_T [T] float.
    Source: arXiv 2508.00222 (multiple importance sampling, exploration-based advantage).
    Differs from the source: no; the constant that it calls uniform is 1, as in its code.
    Nearest part: shape_by_likelihood, which takes that probability as 1; clip_both_sides without
    a clip is equal to it when uniform and gamma are 0.
    Edges: advantage 0 -> objective 0; p -> 1 -> no gradient with gamma above 0.
    """

    scope: ClassVar[str] = "token"
    facts: ClassVar[frozenset[str]] = frozenset({"silent_at_zero_advantage"})
    # How much less an expected token counts; 0: all alike. Default: paper (0.5).
    gamma: float = 0.5
    # Share of the constant 1 in the estimate of the unknown policy. Default: paper (one half).
    uniform: float = 0.5

    def __post_init__(self) -> None:
        require(self, "gamma", low=0.0)
        require(self, "uniform", low=0.0, high=1.0)

    def __call__(self, logp_T: Tensor, logp_old_T: Tensor, advantage_T: Tensor) -> Result:
        old_T = logp_old_T.detach()
        if self.uniform:  # in logs: an impossible token would be 0 * inf or inf / inf
            share = old_T.new_tensor([2 - self.uniform, self.uniform]).log()
            ratio_T = 2 * torch.exp(logp_T - torch.logaddexp(share[0] + old_T, share[1]))
        else:
            ratio_T = torch.exp(logp_T - old_T)
        unexpected_T = (-torch.expm1(logp_T.detach())).clamp(min=0)
        objective_T = advantage_T * ratio_T * unexpected_T**self.gamma
        return Result(objective_T, metrics={"demonstrations/ratio": ratio_T.detach()})
