"""Praise what is right and blame what is not, each by a weight of its own."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, require


@dataclass(frozen=True)
class PraiseAndBlame:
    """Right answers are made likelier by one weight, wrong ones less likely by another.

        advantage_t = positive * gamma ** (policy tokens of the rollout after t) if right
        advantage_t = -negative if wrong;   right: reward >= success

    Blame alone moves probability to what was not sampled, in proportion to what it has; praise
    alone sharpens.

    Reads: reward_B [B] float, scored_B [B] bool, rollout_T [T] int, mask_T [T] bool.
    Writes: advantage_T [T] float.
    Source: arXiv 2506.01347; code TianHongZXY/RLVR-Decomposed (compute_psr_nsr_outcome_advantage).
    Differs from the source: with gamma below 1 its code blames right answers, too, where there is
    blame alone, by 1 minus the discount.
    Nearest part: weigh_signs, which weighs what a baseline has left.
    Edges: no baseline, so groups of one outcome teach too; unscored -> 0; masked tokens get 0.
    """

    facts: ClassVar[frozenset[str]] = frozenset({"advantage_mean_is_not_zero"})
    # Weight of right answers. Default: paper (lambda).
    positive: float = 0.1
    # Weight of wrong answers. Default: paper.
    negative: float = 1.0
    # Discount of a token, for praise alone. Default: released code.
    gamma: float = 1.0
    # Reward from which an answer is right. Default: released code (1).
    success: float = 1.0

    def __post_init__(self) -> None:
        require(self, "positive", "negative", low=0.0)
        require(self, "gamma", low=0.0, high=1.0)
        require(self, "success")

    def __call__(
        self, reward_B: Tensor, scored_B: Tensor, rollout_T: Tensor, mask_T: Tensor
    ) -> Result:
        counts_T = mask_T.to(torch.int64).cumsum(0)
        last_B = segments.extreme(counts_T, rollout_T, reward_B.shape[0])
        after_T = (last_B[rollout_T] - counts_T).to(reward_B.dtype)
        right_T = (reward_B >= self.success)[rollout_T]
        advantage_T = torch.where(right_T, self.positive * self.gamma**after_T, -self.negative)
        advantage_T = torch.where(mask_T & scored_B[rollout_T], advantage_T, 0)
        share = advantage_T.clamp(min=0).sum() / advantage_T.abs().sum().clamp(min=1e-12)
        return Result(advantage_T, metrics={"advantage/praise_share": float(share)})
