"""Cap how much one token can be praised or blamed."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.method.part import require


@dataclass(frozen=True)
class LimitSize:
    """No token's advantage counts for more than the limit, on either side.

        advantage_t <- min(max(advantage_t, -limit), limit)

    Reads: advantage_T [T] float, mask_T [T] bool.   Writes: advantage_T [T] float.
    Source: arXiv 2510.15414 (advantage clip of its runs with one agent).
    Differs from the source: no.
    Nearest part: whiten_over_batch_tokens, which also bounds the usual size.
    Edges: masked tokens get 0.
    """

    # Largest size; in the advantage's unit. Default: paper (4).
    limit: float = 4.0

    def __post_init__(self) -> None:
        require(self, "limit", low=0.0)

    def __call__(self, advantage_T: Tensor, mask_T: Tensor) -> Tensor:
        return torch.where(mask_T, advantage_T.clamp(-self.limit, self.limit), 0)
