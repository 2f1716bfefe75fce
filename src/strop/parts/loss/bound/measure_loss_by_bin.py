"""Measure the clipped surrogate loss in each class of difficulty."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, require
from strop.parts.loss.bound._bounds import clip
from strop.support.errors import UserError


@dataclass(frozen=True)
class MeasureLossByBin:
    """The losses of easy and hard prompts are seen separately, before classes are weighed.

        objective_t = min(rho_t A_t, clip(rho_t, 1 - clip_low, 1 + clip_high) A_t)
        A_t: the advantage without its class's weight;  rho = exp(log_ratio)

    The part stands in a term of coefficient 0. Metrics: bins/loss_{n} and bins/share_{n}, sums over
    the tokens of class n of -objective / the rollout's tokens, and of 1 / its tokens, both / all
    tokens: the first over the second is the mean over rollouts of their mean loss.

    Reads: log_ratio_T, advantage_T [T] float, bin_B, rollout_T, length_B int, bin_weight_B [B]
    float where there.   Writes: objective_T [T] float.
    Source: arXiv 2601.19280 (the classes' losses); code kishanpb/verl-gdro.
    Differs from the source: no; a penalty towards the reference is left out, as in its code.
    Nearest part: clip_both_sides; its objective where all weights are 1.
    Edges: class -1 is in no metric; tokens that selection took out count in the length.
    """

    scope: ClassVar[str] = "token"
    # Classes. Default: released code (two edges).
    num_bins: int = 3
    # Width below 1, a share of the ratio. Default: paper (0.2).
    clip_low: float = 0.2
    # Width above 1, a share of the ratio. Default: released code (0.28).
    clip_high: float = 0.28

    def __post_init__(self) -> None:
        require(self, "num_bins", low=1)
        require(self, "clip_low", "clip_high", low=0.0)

    def __call__(
        self,
        log_ratio_T: Tensor,
        advantage_T: Tensor,
        bin_B: Tensor,
        rollout_T: Tensor,
        length_B: Tensor,
        bin_weight_B: Tensor | None = None,
    ) -> Result:
        if bool((bin_B >= self.num_bins).any()):
            raise UserError(
                f"measure_loss_by_bin.num_bins is {self.num_bins}, so the last class is "
                f"{self.num_bins - 1}, but a prompt is of class {int(bin_B.max())}: raise num_bins"
            )
        if bin_weight_B is not None:
            weight_T = bin_weight_B[rollout_T]
            advantage_T = torch.where(weight_T > 0, advantage_T / weight_T, 0)
        bounds = (1 - self.clip_low, 1 + self.clip_high)
        objective_T = clip(log_ratio_T.exp(), advantage_T, *bounds).value
        one_B = 1 / length_B.clamp(min=1).double()
        loss_T = -objective_T.detach().double()
        shares = [
            segments.at(torch.where(bin_B == b, one_B, 0), rollout_T) for b in range(self.num_bins)
        ]
        metrics = {f"bins/share_{b}": share_T for b, share_T in enumerate(shares)}
        metrics |= {f"bins/loss_{b}": loss_T * share_T for b, share_T in enumerate(shares)}
        return Result(objective_T, metrics=metrics)
