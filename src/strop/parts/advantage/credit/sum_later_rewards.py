"""Credit a token with all rewards from it on."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import require


@dataclass(frozen=True)
class SumLaterRewards:
    """A token is credited with what its rollout earned from it on, later rewards counting less.

        return_t = reward_t + gamma * return_{t+1}

    With `whiten`, first reward_t <- (reward_t - mean) / sqrt(variance + eps) over all policy tokens
    of the step, so that tokens without a reward get the same small one.

    Reads: reward_T [T] float, rollout_T [T] int, mask_T [T] bool, scored_B [B] bool.
    Writes: advantage_T [T] float.
    Source: code only: thu-nics/MARSHAL:roll/utils/functionals.py @ 2db0222 (arXiv 2510.15414).
    Differs from the source: unscored rollouts take no part.
    Nearest part: discount_turn_rewards with spread_turns; after place_turn_rewards equal to them
    when gamma is 1 and nothing is whitened.
    Edges: an environment's token counts as a step of the discount; masked tokens and unscored
    rollouts -> 0.
    """

    writes: ClassVar[tuple[str, ...]] = ("advantage_T",)
    # Discount of a token. Default: released code (1: none).
    gamma: float = 1.0
    # Whether rewards are whitened over the step's policy tokens. Default: ours (no).
    whiten: bool = False
    # Added to the variance; in squared reward units. Default: released code.
    eps: float = 1e-8

    def __post_init__(self) -> None:
        require(self, "gamma", low=0.0, high=1.0)
        require(self, "eps", low=0.0)

    def __call__(
        self, reward_T: Tensor, rollout_T: Tensor, mask_T: Tensor, scored_B: Tensor
    ) -> Tensor:
        counts_T = mask_T & scored_B[rollout_T]
        earned_T = torch.where(counts_T, reward_T.double(), 0)
        if self.whiten:
            all_T = torch.zeros_like(rollout_T)
            earned_T, std = segments.centred_and_std(earned_T, all_T, 1, counts_T)
            earned_T = torch.where(earned_T == 0, 0, earned_T * (std.square() + self.eps).rsqrt())
        earned_T = torch.where(counts_T, earned_T, 0)
        return_T = segments.reward_to_go(earned_T, rollout_T, self.gamma)
        return torch.where(counts_T, return_T, 0).to(reward_T.dtype)
