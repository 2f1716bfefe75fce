"""Centre each rollout's reward on the mean of its group and of imagined perfect answers."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop import segments
from strop.part import require, require_one_of


@dataclass(frozen=True)
class SubtractMeanWithImaginedBest:
    """Also where every answer of a prompt is wrong, each learns that it fell short of the best.

        advantage_i = reward_i - (sum_{j in group} reward_j + n best) / (G + n)

    n is num_imagined. The advantages of a group then sum to n (mean - best), 0 or less, so
    nothing after this part may centre them again.

    Reads: advantage_B [B] float, group_B [B] int, num_groups int, scored_B [B] bool.
    Writes: advantage_B [B] float.
    Source: arXiv 2509.18851 (advantage calibration); code nangongrui-ngr/NGRPO.
    Differs from the source: no.
    Nearest part: subtract_group_mean; equal to it when num_imagined is 0.
    Edges: group of one -> by `singleton`; all equal to best -> exactly 0; unscored rollouts -> 0
    and outside the mean.
    """

    facts: ClassVar[frozenset[str]] = frozenset(
        {"advantage_mean_is_not_zero", "learns_from_uniform_groups"}
    )
    # Imagined rollouts of each group. Default: paper (one).
    num_imagined: int = 1
    # Their reward, the largest there is. Default: paper (1, of rewards in {0, 1}).
    best: float = 1.0
    # What a group of one gets: "raw" (its reward) or "zero". Default: released code (NGRPO).
    singleton: str = "raw"

    def __post_init__(self) -> None:
        require(self, "num_imagined", low=0)
        require(self, "best")
        require_one_of(self, "singleton", ("raw", "zero"))

    def __call__(
        self, advantage_B: Tensor, group_B: Tensor, scored_B: Tensor, num_groups: int
    ) -> Tensor:
        size_P = segments.count(group_B, num_groups, scored_B)
        # G / (G + n) (reward - group's mean) + n / (G + n) (reward - best): 0 where all are equal
        own_B = segments.centred(advantage_B, group_B, num_groups, scored_B)
        share_P = size_P.to(advantage_B.dtype) / (size_P + self.num_imagined).clamp(min=1)
        share_B = share_P[group_B]
        centred_B = share_B * own_B + (1 - share_B) * (advantage_B - self.best)
        alone_B = (size_P == 1)[group_B]
        raw_B = advantage_B if self.singleton == "raw" else torch.zeros_like(advantage_B)
        return torch.where(scored_B, torch.where(alone_B, raw_B, centred_B), 0)
