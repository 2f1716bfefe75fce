"""Give every prompt's group advantages of the same median size."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, require


@dataclass(frozen=True)
class DivideByGroupMad:
    """Easy and hard prompts push equally hard; one outlier does not shrink its whole group.

        advantage_i <- advantage_i / (max(MAD, floor) + eps)
        MAD = lower median_{j in group} |advantage_j - lower median_{k in group} advantage_k|
        where that MAD is 0 and floor too: the group's standard deviation (n - 1) in its place
        nonzero_rescale: then times G / (rollouts of the group with advantage other than 0)

    The MAD is 0 where more than half of a group are alike, as binary rewards often are. The metric
    `advantage/mad_is_zero` is the share of groups where that happens to an advantage other than 0.

    Reads: advantage_B [B] float, group_B [B] int, num_groups int, scored_B [B] bool.
    Writes: advantage_B [B] float.
    Source: arXiv 2601.22582; nonzero_rescale code only: lotusroot-kim/MC-GRPO.
    Differs from the source: it divides by eps where the MAD is 0, which makes +-1000 of rewards 0
    and 1; the standard deviation there, and `floor`, are ours (floor=1e-12 is as the source).
    Nearest part: divide_by_group_std.
    Edges: group of one, or all equal -> advantage / (floor + eps), 0 where both are; unscored
    rollouts -> 0 and outside the medians.
    """

    # Added to the MAD; in reward units. Default: released code (MC-GRPO).
    eps: float = 1e-3
    # Smallest MAD, in reward units; 0: none, a MAD of 0 is replaced. Default: ours.
    floor: float = 0.0
    # Whether other advantages get the share of zero ones. Default: released code (math trainer).
    nonzero_rescale: bool = False
    # G in that factor; 0: the group's scored rollouts. Default: ours (equal when all are scored).
    group_size: int = 0

    def __post_init__(self) -> None:
        require(self, "eps", "floor", low=0.0)
        require(self, "group_size", low=0)

    def __call__(
        self, advantage_B: Tensor, group_B: Tensor, scored_B: Tensor, num_groups: int
    ) -> Result:
        median_P = segments.lower_median(advantage_B, group_B, num_groups, scored_B)
        deviation_B = (advantage_B - median_P[group_B]).abs()
        mad_P = segments.lower_median(deviation_B, group_B, num_groups, scored_B)
        std_P = segments.std(advantage_B, group_B, num_groups, scored_B)
        scale_P = torch.where(mad_P.clamp(min=self.floor) > 0, mad_P.clamp(min=self.floor), std_P)
        scaled_B = segments.divided(advantage_B, (scale_P + self.eps)[group_B])
        nonzero_B = scored_B & (advantage_B != 0)
        scaled_B = torch.where(nonzero_B, scaled_B, 0)
        nonzero_P = segments.count(group_B, num_groups, nonzero_B)
        size_P = segments.count(group_B, num_groups, scored_B)
        if self.nonzero_rescale:
            whole_P = torch.full_like(size_P, self.group_size) if self.group_size else size_P
            scaled_B = scaled_B * whole_P[group_B] / nonzero_P.clamp(min=1)[group_B]
        zero = ((mad_P == 0) & (nonzero_P > 0)).sum()
        metrics = {"advantage/mad_is_zero": float(zero / (size_P > 0).sum().clamp(min=1))}
        return Result(scaled_B, metrics=metrics)
