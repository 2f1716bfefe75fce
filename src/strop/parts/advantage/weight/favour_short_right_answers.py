"""Among right answers, push the longer ones less, the more so the longer they are."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import require
from strop.parts.advantage.credit._lineage import pairs_of


@dataclass(frozen=True)
class FavourShortRightAnswers:
    """A right answer is credited less where it is longer than the shortest right one.

        advantage_t <- advantage_t - |advantage_t| * (1 - ((L_s - b) / (L_i - b)) ** alpha)

    for tokens t >= b of a right answer i of length L_i > L_s; s: the group's shortest right one,
    b: the tokens that i and s share by descent. Of several shortest ones s shares most.

    Reads: advantage_T [T] float, reward_B [B] float, scored_B [B] bool, group_B, parent_B,
    fork_at_B, length_B [B] int, num_groups int, rollout_T [T] int, mask_T [T] bool.
    Writes: advantage_T.
    Source: arXiv 2601.05053, sec. 3.3.
    Differs from the source: right is reward >= success; the released code takes every reward
    other than 0, which includes wrong answers at -1.
    Nearest part: none.
    Edges: alpha 0, fewer than two right answers, the shortest itself -> unchanged; unscored -> 0.
    """

    # Strength; 0: none. Default: paper (1 and 2 were best of 0.5, 1, 2, 3).
    alpha: float = 1.0
    # Reward from which an answer is right. Default: ours (1, of rewards in {0, 1}).
    success: float = 1.0

    def __post_init__(self) -> None:
        require(self, "alpha", low=0.0)
        require(self, "success")

    def __call__(
        self,
        advantage_T: Tensor,
        reward_B: Tensor,
        scored_B: Tensor,
        group_B: Tensor,
        parent_B: Tensor,
        fork_at_B: Tensor,
        length_B: Tensor,
        rollout_T: Tensor,
        mask_T: Tensor,
        num_groups: int,
    ) -> Tensor:
        num = reward_B.shape[0]
        right_B = scored_B & (reward_B >= self.success)
        least_P = segments.extreme(length_B, group_B, num_groups, right_B, largest=False)
        shortest_B = right_B & (length_B == least_P[group_B])
        longer_B = right_B & (length_B > least_P[group_B])
        pairs = pairs_of(group_B, num_groups, parent_B, fork_at_B, length_B)
        pairs = pairs.where(longer_B[pairs.one_N] & shortest_B[pairs.other_N])
        common_B = segments.extreme(pairs.common_N, pairs.one_N, num)
        ratio_B = (least_P[group_B] - common_B).double() / (length_B - common_B).clamp(min=1)
        factor_B = (1 - ratio_B.clamp(0, 1) ** self.alpha).to(advantage_T.dtype)
        row_N = segments.rows_where(mask_T & segments.at(longer_B, rollout_T))
        rollout_N, own_N = segments.at(rollout_T, row_N), segments.at(advantage_T, row_N)
        after_N = segments.place_in_run(rollout_N, num) >= segments.at(common_B, rollout_N)
        factor_N = torch.where(after_N, segments.at(factor_B, rollout_N), 0)
        learns_T = mask_T & segments.at(scored_B, rollout_T)
        kept_T = torch.where(learns_T, advantage_T, 0)
        return kept_T.index_copy_(0, row_N, own_N - own_N.abs() * factor_N)
