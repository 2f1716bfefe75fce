"""Reward a second attempt for being better than the first, and charge it for being worse."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.method.part import Result, require


@dataclass(frozen=True)
class RewardImprovement:
    """A second attempt that repairs the first earns more than one that was right at once.

        reward_2 <- reward_2 + alpha (reward_2 - reward_1);   reward_1 stays

    reward_1 is the reward of the first attempt (stage 0) of the same conversation. Metrics, over
    conversations of two scored attempts: attempts/first and /second (mean outcome), attempts/gain
    (their difference), attempts/frac_repaired and /frac_spoilt (outcome higher, lower).

    Reads: reward_B, outcome_B [B] float, stage_B, conversation_B [B] int, scored_B [B] bool.
    Writes: reward_B [B] float.
    Source: arXiv 2409.12917, sec. 5.2 (reward shaping).
    Differs from the source: no.
    Nearest part: rescale_reward, which looks at one rollout alone.
    Edges: a first attempt that is missing or unscored -> reward_2 stays; alpha 0 -> all stays.
    """

    # Weight of the difference. Default: paper (10).
    alpha: float = 10.0

    def __post_init__(self) -> None:
        require(self, "alpha", low=0.0)

    def __call__(
        self, reward_B: Tensor, outcome_B: Tensor, stage_B: Tensor, conversation_B: Tensor,
        scored_B: Tensor,
    ) -> Result:  # fmt: skip
        keys, key_B = torch.unique(conversation_B, return_inverse=True)
        first_B = ((stage_B == 0) & scored_B).nonzero().squeeze(1)
        row_N = torch.full((keys.shape[0],), -1, device=key_B.device)
        row_N[key_B[first_B]] = first_B
        before_B = row_N[key_B]
        again_B = (stage_B == 1) & scored_B & (before_B >= 0)
        bonus_B = self.alpha * (reward_B - reward_B[before_B.clamp(min=0)])
        changed_B = torch.where(again_B, reward_B + bonus_B, reward_B)
        one, two = outcome_B[before_B[again_B]].double(), outcome_B[again_B].double()
        metrics = {
            "attempts/first": one.mean(),
            "attempts/second": two.mean(),
            "attempts/gain": (two - one).mean(),
            "attempts/frac_repaired": (two > one).double().mean(),
            "attempts/frac_spoilt": (two < one).double().mean(),
        }
        logged = {name: float(value) for name, value in metrics.items()} if len(one) else {}
        return Result(changed_B, metrics=logged)
