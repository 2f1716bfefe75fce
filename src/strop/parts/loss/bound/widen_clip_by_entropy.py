"""Give tokens room where the policy was undecided, and hold them back where it was sure."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, require, require_one_of
from strop.parts.loss.bound._bounds import clip, dual_clipped
from strop.parts.loss.bound.clip_both_sides import ClipBothSides


@dataclass(frozen=True)
class WidenClipByEntropy(ClipBothSides):
    """Undecided tokens may rise further and count more once they move; sure ones fall further.

        l_t = log max(H_t, 1e-8);  d_t = l_t - (quantile of l);  h = d / max d where d > 0, else
        h = d / |min d|, so h in [-1, 1]
        h > 0: high = clip_high (1 + clip_alpha h), else low = clip_low (1 - clip_alpha h)
        A' = A (1 + adv_beta h) where h > 0 and rho is outside (1 - low / 2, 1 + high / 2), and
        where h <= 0 and rho is inside; A elsewhere
        objective_t = min(rho A', clip(rho, 1 - low, 1 + high) A'), with the dual clip of A'

    h is over gradient_T of the update; quantiles are of nearest rank; h and A' have no gradient.
    Metrics: those of clip_both_sides, hapo/signal_mean (h) and hapo/advantage_factor_mean (A'/A).

    Reads: log_ratio_T, advantage_T, entropy_T [T] float, gradient_T [T] bool.
    Writes: objective_T [T] float.
    Source: arXiv 2509.16591, eq. 5 to 13; code starriver030515/HAPO (core_algos.py).
    Differs from the source: signals are of the update, the released code's of a micro-batch; its
    h is positive for sure tokens too (a sign slip; source_form "code").
    Nearest part: clip_both_sides; equal to it when clip_alpha = adv_beta = 0.
    Edges: all entropies equal -> h 0; no token -> nothing.
    """

    scope: ClassVar[str] = "update"
    facts: ClassVar[frozenset[str]] = frozenset()  # tokens without an advantage move the signal
    detached: ClassVar[frozenset[str]] = frozenset({"entropy_T"})
    # Level of the entropy that separates sure from undecided, a share. Default: released code.
    quantile: float = 0.8
    # How far the signal widens the clip. Default: released code.
    clip_alpha: float = 1.0
    # How far the signal changes advantages. Default: released code.
    adv_beta: float = 1.0
    # "paper" (signed), or "code": its sign slip. Default: paper.
    source_form: str = "paper"

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self, "quantile", low=0.0, high=1.0)
        require(self, "clip_alpha", "adv_beta", low=0.0)
        require_one_of(self, "source_form", ("paper", "code"))

    def __call__(  # type: ignore[override]
        self, log_ratio_T: Tensor, advantage_T: Tensor, entropy_T: Tensor, gradient_T: Tensor
    ) -> Result:
        signal_T = self._signal(entropy_T.detach(), gradient_T)
        undecided_T = signal_T > 0
        low_T = signal_T.clamp(max=0).mul_(-self.clip_alpha).add_(1).mul_(self.clip_low)
        high_T = signal_T.clamp(min=0).mul_(self.clip_alpha).add_(1).mul_(self.clip_high)
        ratio_T = log_ratio_T.exp()
        inside_T = (ratio_T > (low_T / -2).add_(1)) & (ratio_T < (high_T / 2).add_(1))
        factor_T = torch.where(undecided_T != inside_T, 1 + self.adv_beta * signal_T, 1.0)
        changed_T = (advantage_T * factor_T).detach()
        low_T, high_T = low_T.neg_().add_(1), high_T.add_(1)
        clipped = clip(ratio_T, changed_T, low_T, high_T)
        clipped = dual_clipped(clipped, changed_T, self.dual_clip_c)
        metrics = {
            **clipped.metrics,
            "hapo/signal_mean": signal_T,
            "hapo/advantage_factor_mean": factor_T,
        }
        return Result(clipped.value, metrics=metrics)

    def _signal(self, entropy_T: Tensor, gradient_T: Tensor) -> Tensor:
        """h [T]; 0 outside gradient_T."""
        log_T = torch.where(gradient_T, entropy_T, 1.0).clamp_(min=1e-8).log_()
        one_T = segments.one_key(gradient_T)
        middle = segments.nearest_rank(log_T, one_T, 1, self.quantile, gradient_T)
        off_T = torch.where(gradient_T, log_T - middle, 0)
        # The 0 outside gradient_T leaves the clamped maximum and minimum as they are.
        most = segments.extreme(off_T, one_T, 1)
        least = segments.extreme(off_T, one_T, 1, largest=False)
        tiny = torch.finfo(off_T.dtype).tiny
        sign = 1.0 if self.source_form == "paper" else -1.0
        most, least = most.clamp(min=tiny), sign * (-least).clamp(min=tiny)
        return off_T.div_(torch.where(off_T > 0, most, least))
