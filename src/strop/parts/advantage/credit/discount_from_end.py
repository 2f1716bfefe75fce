"""Credit the outcome to a rollout's last tokens more than to its first."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import require


@dataclass(frozen=True)
class DiscountFromEnd:
    """The earlier a token stands, the less of the outcome it is credited with.

        advantage_t = gamma ** (policy tokens of the rollout after t) * advantage_{rollout of t}

    Reads: advantage_B [B] float, rollout_T [T] int, mask_T [T] bool.
    Writes: advantage_T [T] float.
    Source: arXiv 2501.03262 (the discounted return of an outcome on the last token).
    Differs from the source: tokens of an environment neither decay the return nor stop it; verl
    stops it at the first of them.
    Nearest part: spread_evenly; equal to it when gamma is 1.
    Edges: masked tokens get 0.
    """

    # Discount of a token. Default: ours (the source's 1 is spread_evenly).
    gamma: float = 0.99

    def __post_init__(self) -> None:
        require(self, "gamma", low=0.0, high=1.0)

    def __call__(self, advantage_B: Tensor, rollout_T: Tensor, mask_T: Tensor) -> Tensor:
        num = advantage_B.shape[0]
        counts_T = mask_T.to(torch.int64).cumsum(0)
        last_B = segments.extreme(counts_T, rollout_T, num)
        after_T = (last_B[rollout_T] - counts_T).to(advantage_B.dtype)
        return torch.where(mask_T, advantage_B[rollout_T] * self.gamma**after_T, 0)
