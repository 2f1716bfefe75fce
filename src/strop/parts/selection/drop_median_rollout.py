"""Do not train on the rollout that served as the baseline."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Selected


@dataclass(frozen=True)
class DropMedianRollout:
    """The one rollout of a group whose reward was subtracted costs no training time.

        rollout i leaves gradient and denominator if i is its group's lower median in reward

    Reads: reward_B [B] float, group_B [B] int, num_groups int, scored_B [B] bool, mask_T [T] bool,
    rollout_T [T] int.   Writes: gradient_T, denominator_T [T] bool.
    Source: arXiv 2601.22582 (G + 1 sampled, G trained on).
    Differs from the source: no; of equal rewards the first in row order counts as lower.
    Nearest part: none.
    Edges: group of one -> nothing of it is left; a group without scored rollouts loses none here.
    """

    facts: ClassVar[frozenset[str]] = frozenset({"order_breaks_ties"})

    def __call__(
        self,
        reward_B: Tensor,
        group_B: Tensor,
        scored_B: Tensor,
        mask_T: Tensor,
        rollout_T: Tensor,
        num_groups: int,
    ) -> Selected:
        row_P = segments.lower_median_row(reward_B, group_B, num_groups, scored_B)
        keep_B = torch.ones_like(scored_B)
        keep_B[row_P[segments.count(group_B, num_groups, scored_B) > 0]] = False
        keep_T = keep_B[rollout_T] & mask_T
        return Selected(keep_T, keep_T, "median_rollout")
