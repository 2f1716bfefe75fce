"""Give each rollout of a bundle its part of what the bundle is credited with."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import require, require_one_of


@dataclass(frozen=True)
class ShareAmongBundle:
    """A bundle's advantage is measured in deviations and handed to the rollouts in it.

        A <- A / (std of the bundle's scores + eps)
        uniform: A;   score: A / 2 where the reward is above 0, else 3 A / 2
        std: A / (std_prompt + eps)
        sum-mean: A d_i / sum_{j in slot} d_j,  d_i = R_i - mean_prompt

    Deviations are unbiased; a prompt's of at most 1e-3, and a bundle's of 0, count as 1.

    Reads: advantage_B, reward_B, bundle_score_B [B] float, slot_B, bundle_B, group_B [B] int,
    num_groups int, scored_B [B] bool.   Writes: advantage_B [B] float.
    Source: arXiv 2510.00911; code RTkenny/RiskPO (credit_assign_mode).
    Differs from the source: a bundle of equal scores is not divided by eps alone; its advantage is
    0 unless quantiles are tracked or given. Deviations are a bundle's, as the code has them.
    Nearest part: divide_by_group_std.
    Edges: in no slot -> 0; one score, or all equal -> divided by 1 + eps; sum-mean with a sum of at
    most 1e-6 -> equal shares.
    """

    # "sum-mean", "uniform", "score" or "std". Default: released code (script: sum-mean, DAPO-math).
    credit: str = "sum-mean"
    # Whether advantages are divided by the deviation of the scores. Default: released code (yes).
    normalize_std: bool = True
    # Added to deviations, reward units. Default: released code (1e-6).
    eps: float = 1e-6

    def __post_init__(self) -> None:
        require_one_of(self, "credit", ("sum-mean", "uniform", "score", "std"))
        require(self, "eps", low=0.0)

    def __call__(
        self,
        advantage_B: Tensor,
        reward_B: Tensor,
        bundle_score_B: Tensor,
        slot_B: Tensor,
        bundle_B: Tensor,
        group_B: Tensor,
        scored_B: Tensor,
        num_groups: int,
    ) -> Tensor:
        inside_B = scored_B & (slot_B >= 0)
        if self.normalize_std:
            std_B = _of_slots(bundle_score_B, bundle_B, slot_B, inside_B)
            advantage_B = segments.divided(advantage_B, std_B + self.eps)
        if self.credit == "score":
            advantage_B = advantage_B * torch.where(reward_B > 0, 0.5, 1.5).to(advantage_B.dtype)
        elif self.credit == "std":
            std_P = segments.std(reward_B, group_B, num_groups, scored_B)
            std_P = torch.where(std_P > 1e-3, std_P, 1)
            advantage_B = advantage_B / (std_P[group_B] + self.eps)
        elif self.credit == "sum-mean":
            mean_B = segments.mean(reward_B, group_B, num_groups, scored_B)[group_B]
            num_slots = segments.count_of(slot_B + 1)
            part_B = torch.where(inside_B, reward_B - mean_B, 0)
            sum_B = segments.total(part_B, slot_B + 1, num_slots, inside_B)[slot_B + 1]
            size_B = segments.count(slot_B + 1, num_slots, inside_B)[slot_B + 1].clamp(min=1)
            even_B = sum_B.abs() <= 1e-6
            share_B = torch.where(
                even_B, 1 / size_B.double(), part_B / torch.where(even_B, 1, sum_B)
            )
            advantage_B = advantage_B * share_B.to(advantage_B.dtype)
        return torch.where(inside_B, advantage_B, 0)


def _of_slots(score_B: Tensor, bundle_B: Tensor, slot_B: Tensor, where_B: Tensor) -> Tensor:
    """Deviation [B] of the scores of each rollout's bundle, one per slot; 1 in place of 0."""
    row_N = where_B.nonzero().squeeze(1)
    num = segments.count_of(bundle_B)
    slot_N, num_slots = segments.key_of(slot_B[row_N])
    score_N = segments.mean(score_B[row_N], slot_N, num_slots)
    key_N = segments.extreme(bundle_B[row_N], slot_N, num_slots, largest=False)
    std = segments.std(score_N, key_N, num)
    return torch.where(std == 0, 1.0, std)[bundle_B].to(score_B.dtype)
