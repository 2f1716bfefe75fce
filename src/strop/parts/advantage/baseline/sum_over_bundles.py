"""Score rollouts of several prompts together, like exam papers of several questions."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.columns import Column
from strop.method.part import Result, require


@dataclass(frozen=True)
class SumOverBundles:
    """Right and wrong answers of some prompts add up to a graded score.

        Z_j = sum_{prompt of the bundle} reward of its j-th rollout,   j = 1 .. fewest of a prompt

    A bundle is `size` consecutive prompts of the step, or what bundle_B says. Rollouts are in
    the order of their uids, which is random, or in row order without uids. The sum of a bundle
    with fewer prompts than the largest is scaled up to that number.

    Reads: advantage_B [B] float, group_B [B] int, num_groups int, scored_B [B] bool; bundle_B,
    rollout_uid_B [B] int where given.
    Writes: advantage_B, bundle_score_B [B] float (Z_j of the rollout's slot), slot_B [B] int (-1:
    none), bundle_B [B] int.
    Source: arXiv 2510.00911; code RTkenny/RiskPO.
    Differs from the source: no; the scaling of bundles of unlike sizes is ours.
    Nearest part: subtract_group_mean, which compares the rollouts of one prompt.
    Edges: rollouts beyond the fewest, and unscored ones, are in no slot and get 0, as do all of a
    bundle with a prompt that has no scored rollout; size 1 -> Z is the rollout's reward.
    """

    facts: ClassVar[frozenset[str]] = frozenset({"order_breaks_ties"})
    writes: ClassVar[tuple[str, ...]] = ("advantage_B", "bundle_score_B", "slot_B", "bundle_B")
    declares: ClassVar[tuple[Column, ...]] = (
        Column("bundle_score_B", "float", "sum of rewards of the bundle's slot", "reward"),
        Column("slot_B", "int", "place of the rollout in its group; -1: none"),
        Column("bundle_B", "int", "bundle of prompts", "key", door=("bundles",), random="key:2"),
    )
    # Prompts of a bundle. Default: paper (5).
    size: int = 5

    def __post_init__(self) -> None:
        require(self, "size", low=1)

    def __call__(
        self,
        advantage_B: Tensor,
        group_B: Tensor,
        scored_B: Tensor,
        num_groups: int,
        bundle_B: Tensor | None = None,
        rollout_uid_B: Tensor | None = None,
    ) -> Result:
        bundle_B = group_B // self.size if bundle_B is None else bundle_B
        key_B, num_bundles = segments.key_of(bundle_B)
        key_P = segments.extreme(key_B, group_B, num_groups, largest=False)
        key_B = key_P[group_B]
        fewest = segments.extreme(
            segments.count(group_B, num_groups, scored_B), key_P, num_bundles, largest=False
        )
        place_B = _places(group_B, num_groups, scored_B, rollout_uid_B)
        inside_B = scored_B & (place_B < fewest[key_B])
        width = segments.count_of(fewest)
        slot_B = torch.where(inside_B, key_B * width + place_B, 0)
        sum_N = segments.total(advantage_B, slot_B, num_bundles * width, inside_B)
        prompts = segments.count(key_P, num_bundles)
        scale_B = (prompts.max() / prompts.double())[key_B] if num_bundles else advantage_B
        score_B = sum_N[slot_B] * scale_B.to(advantage_B.dtype) if num_bundles else advantage_B
        score_B = torch.where(inside_B, score_B, 0)
        return Result((score_B, score_B, torch.where(inside_B, slot_B, -1), key_B))


def _places(group_B: Tensor, num: int, scored_B: Tensor, uid_B: Tensor | None) -> Tensor:
    """Place [B] of every scored rollout among those of its group; the number of rows for others."""
    row_N = scored_B.nonzero().squeeze(1)
    if uid_B is not None:
        row_N = row_N[torch.argsort(uid_B[row_N], stable=True)]
    place_B = torch.full_like(group_B, group_B.shape[0])
    place_B[row_N] = segments.order_within(group_B[row_N], num)
    return place_B
