"""Train on some good rollouts of another phase in place of as many plain ones."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, Selected, require


@dataclass(frozen=True)
class SwapInOtherStages:
    """A few good rollouts of other phases replace plain ones; the others of these phases go.

        s = min(most, good) for rollouts of stage 1, min(most, good) // 2 for those of stage 2;
        good: rollouts of the stage with an advantage above 0
        s good ones stay; s plain ones (stage 0) go, and so do all others of these stages

    Which stay and which go follows rollout_uid, which does not depend on the answer.

    Reads: advantage_B [B] float, stage_B, rollout_uid_B [B] int, scored_B [B] bool if present,
    mask_T [T] bool, rollout_T [T] int.   Writes: gradient_T, denominator_T [T] bool.
    Source: code only: 597358816/AEPO (the method of arXiv 2510.08141).
    Differs from the source: it takes the first rows of each, and fails where none is good.
    Nearest part: keep_large_advantages.
    Edges: no other stage -> keeps all scored ones; fewer plain ones than s -> all of them go.
    """

    facts: ClassVar[frozenset[str]] = frozenset({"order_breaks_ties"})
    # Most rollouts that are swapped in. Default: released code (60 of 2,560).
    most: int = 60

    def __post_init__(self) -> None:
        require(self, "most", low=0)

    def __call__(
        self,
        advantage_B: Tensor,
        stage_B: Tensor,
        rollout_uid_B: Tensor,
        mask_T: Tensor,
        rollout_T: Tensor,
        scored_B: Tensor | None = None,
    ) -> Result:
        scored_B = torch.ones_like(stage_B, dtype=torch.bool) if scored_B is None else scored_B
        good_B = scored_B & (stage_B > 0) & (advantage_B > 0)
        kind_B = stage_B.clamp(0, 2)
        limit_B = segments.count(kind_B, 3, good_B).clamp(max=self.most)[kind_B]
        limit_B = torch.where(stage_B == 1, limit_B, limit_B // 2)
        place_B = segments.rank(rollout_uid_B, kind_B, 3, good_B)
        swapped_B = good_B & (place_B < limit_B)
        plain_B = scored_B & (stage_B == 0)
        gone_B = segments.rank(rollout_uid_B, kind_B, 3, plain_B) < swapped_B.sum()
        keep_T = mask_T & (swapped_B | (plain_B & ~gone_B))[rollout_T]
        metrics = {
            "aepo/swapped_in": float(swapped_B.sum()),
            "aepo/hotter": float((stage_B == 1).any()),
        }
        return Result(Selected(keep_T, keep_T, "swapped_out"), metrics=metrics)
