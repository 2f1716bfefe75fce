"""Learn from tokens of some origins only."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.method.part import Selected
from strop.support.errors import UserError


@dataclass(frozen=True)
class KeepOrigins:
    """Tokens that came from elsewhere neither learn nor count.

        token t stays in gradient and denominator if origin_t is one of `origins`; with
        still_counts every policy token stays in the denominator

    Reads: origin_T [T] int, mask_T [T] bool.   Writes: gradient_T, denominator_T [T] bool.
    Source: arXiv 2509.04419 (one loss for demonstrations, one for the policy's own rollouts).
    Differs from the source: no.
    Nearest part: drop_truncated_rollouts.
    Edges: nothing of these origins -> empty masks.
    """

    # 0 policy, 1 environment, 2 demonstration, 3 hint, 4 replay. Default: ours (the policy's own).
    origins: tuple[int, ...] = (0,)
    # Whether the others still count in averages. Default: ours (no).
    still_counts: bool = False

    def __post_init__(self) -> None:
        if not self.origins or any(origin not in range(5) for origin in self.origins):
            raise UserError(f"keep_origins.origins takes numbers 0 to 4, it is {self.origins}")

    def __call__(self, origin_T: Tensor, mask_T: Tensor) -> Selected:
        wanted = torch.tensor(self.origins, device=origin_T.device)
        keep_T = torch.isin(origin_T, wanted) & mask_T
        return Selected(keep_T, mask_T if self.still_counts else keep_T, "other_origin")
