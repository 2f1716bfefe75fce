"""Make a pair of each prompt's best and worst rollout."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments


@dataclass(frozen=True)
class PairBestWithWorst:
    """Scored rollouts become a preference: the best over the worst of each prompt.

        preferred_i = 1 where reward_i is its group's largest, -1 where it is the smallest, else 0

    Of ties the last is the best and the first the worst.

    Reads: reward_B [B] float, group_B [B] int, num_groups int, scored_B [B] bool.
    Writes: preferred_B [B] int.
    Source: arXiv 2601.21343, sec. 2 (chosen and rejected of online DPO).
    Differs from the source: no; it does not say what it does with equal scores.
    Nearest part: none.
    Edges: all equal, or one scored rollout -> no pair, all 0, unless ties_count; unscored -> 0.
    """

    writes: ClassVar[tuple[str, ...]] = ("preferred_B",)
    facts: ClassVar[frozenset[str]] = frozenset({"order_breaks_ties"})
    # Whether a group of equal rewards has a best one too. Default: ours (no, there is no pair).
    ties_count: bool = False

    def __call__(
        self, reward_B: Tensor, group_B: Tensor, scored_B: Tensor, num_groups: int
    ) -> Tensor:
        differ_P = segments.differ(reward_B, group_B, num_groups, scored_B)
        place_B = segments.rank(reward_B, group_B, num_groups, scored_B)
        last_B = segments.count(group_B, num_groups, scored_B)[group_B] - 1
        pairs_B = scored_B & (differ_P | self.ties_count)[group_B]
        best_B, worst_B = pairs_B & (place_B == last_B), pairs_B & (place_B == 0)
        return torch.where(best_B, 1, torch.where(worst_B, -1, 0))
