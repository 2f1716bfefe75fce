"""Favour answers that the policy is less sure of than of their prompt."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, require


@dataclass(frozen=True)
class SubtractExcessConfidence:
    """Answers that the policy is very sure of gain less, unlikely ones more.

        advantage_i <- advantage_i - alpha * (confidence_i - prompt_confidence_i)
        confidence_i = exp(mean logp_old of the `share` least likely policy tokens of i)

    Nothing is subtracted in a group whose rewards are all 0. Of n tokens floor(share n) count,
    one at least.

    Reads: advantage_B, reward_B, prompt_confidence_B [B] float, group_B [B] int, num_groups int,
    scored_B [B] bool, logp_old_T [T] float, rollout_T [T] int, mask_T [T] bool.
    Writes: advantage_B [B] float.
    Source: arXiv 2602.05281 (advantage re-weighting by generative probabilities).
    Differs from the source: how the share is rounded to tokens is inferred.
    Nearest part: subtract_kl_to_reference, whose price is the distance to a reference.
    Edges: no policy token -> confidence 1; unscored rollouts -> 0; a group all right -> not 0.
    """

    facts: ClassVar[frozenset[str]] = frozenset({"advantage_mean_is_not_zero"})
    # Weight of the difference. Default: ours (the source's is not known).
    alpha: float = 0.3
    # Share of the tokens, the least likely ones, that make up the confidence. Default: paper.
    share: float = 0.2

    def __post_init__(self) -> None:
        require(self, "alpha", low=0.0)
        require(self, "share", low=0.0, high=1.0)

    def __call__(
        self,
        advantage_B: Tensor,
        reward_B: Tensor,
        prompt_confidence_B: Tensor,
        group_B: Tensor,
        scored_B: Tensor,
        logp_old_T: Tensor,
        rollout_T: Tensor,
        mask_T: Tensor,
        num_groups: int,
    ) -> Result:
        num = advantage_B.shape[0]
        lowest_B = segments.mean_of_lowest(logp_old_T, rollout_T, num, self.share, mask_T)
        excess_B = lowest_B.exp() - prompt_confidence_B
        reached_P = segments.count(group_B, num_groups, scored_B & (reward_B != 0)) > 0
        price_B = torch.where(reached_P[group_B], self.alpha * excess_B, 0).to(advantage_B.dtype)
        metrics = {"confidence/excess_mean": segments.overall(excess_B, scored_B)}
        return Result(torch.where(scored_B, advantage_B - price_B, 0), metrics=metrics)
