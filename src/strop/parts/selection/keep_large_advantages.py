"""Spend no training on rollouts that teach next to nothing."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.method.part import Selected, require


@dataclass(frozen=True)
class KeepLargeAdvantages:
    """Rollouts whose advantage is close to 0 are left out.

        rollout i stays if |advantage_i| >= smallest        (positive_only: advantage_i >= smallest)

    With `multiple` the number kept is rounded up to a multiple of it, never beyond the scored ones,
    by keeping the next ones in order of |advantage|; then some small ones stay.

    Reads: advantage_B [B] float, scored_B [B] bool if present, mask_T [T] bool, rollout_T [T]
    int.   Writes: gradient_T, denominator_T [T] bool.
    Source: arXiv 2502.01600; code apple/ml-loop (where `multiple` is the number of workers).
    Differs from the source: with multiple 1 nothing is kept if everything is small.
    Nearest part: keep_inside_entropy_band.
    Edges: unscored rollouts go; ties at the edge of a multiple -> the first stay.
    """

    # Smallest absolute advantage that stays, reward units. Default: released code (0.01).
    smallest: float = 0.01
    # Whether only good rollouts stay. Default: released code (no; its option).
    positive_only: bool = False
    # The number kept is rounded up to a multiple of this. Default: ours (1: not rounded).
    multiple: int = 1

    def __post_init__(self) -> None:
        require(self, "smallest", low=0.0)
        require(self, "multiple", low=1)

    def __call__(
        self, advantage_B: Tensor, mask_T: Tensor, rollout_T: Tensor, scored_B: Tensor | None = None
    ) -> Selected:
        size_B = advantage_B if self.positive_only else advantage_B.abs()
        if scored_B is not None:
            size_B = torch.where(scored_B, size_B, -torch.inf)
        order_B = torch.argsort(size_B, descending=True, stable=True)
        number = (size_B >= self.smallest).sum()
        number = -(-number // self.multiple) * self.multiple
        keep_B = torch.empty_like(size_B, dtype=torch.bool)
        keep_B[order_B] = torch.arange(size_B.shape[0], device=size_B.device) < number
        keep_B &= size_B > -torch.inf
        keep_T = mask_T & keep_B[rollout_T]
        return Selected(keep_T, keep_T, "small_advantage")
