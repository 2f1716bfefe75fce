"""Measure each rollout against the average token of its prompt's group, in token deviations."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import require, require_one_of


@dataclass(frozen=True)
class NormaliseOverGroupTokens:
    """Good and bad tokens of a prompt balance, however long the good and bad answers are.

        mean, std over the policy tokens of the group, each with its rollout's reward
        advantage_i = (reward_i - mean) / (std + eps)
        a group with some |advantage_i| >= fallback_threshold: mean and std (n - 1) over its
        rollouts instead

    The token sum of a group's advantages is 0. Few tokens of one sign would get huge advantages;
    the fallback bounds them.

    Reads: advantage_B [B] float, length_B, group_B [B] int, num_groups int, scored_B [B] bool,
    max_length [] int.   Writes: advantage_B [B] float.
    Source: arXiv 2509.16591; code starriver030515/HAPO (core_algos.py).
    Differs from the source: the released code's threshold also sees a reward of 0 on padding
    (`source_form` "code": where some answer is below max_length); here policy tokens alone count.
    Nearest part: subtract_length_weighted_mean; equal to it but for the deviation.
    Edges: group of one, all equal -> 0; unscored rollouts -> 0 and outside the moments; a rollout
    without policy tokens counts in the fallback only.
    """

    # Added to the deviation; in reward units. Default: released code.
    eps: float = 1e-6
    # Of tokens: "biased" (n) or "unbiased" (n - 1). Default: released code.
    std: str = "biased"
    # Size of an advantage from which its group falls back. Default: released code.
    fallback_threshold: float = 5.0
    # "paper", or "code": the threshold sees padding as a reward of 0. Default: paper.
    source_form: str = "paper"

    def __post_init__(self) -> None:
        require(self, "eps", "fallback_threshold", low=0.0)
        require_one_of(self, "std", ("biased", "unbiased"))
        require_one_of(self, "source_form", ("paper", "code"))

    def __call__(
        self,
        advantage_B: Tensor,
        length_B: Tensor,
        group_B: Tensor,
        scored_B: Tensor,
        max_length: Tensor,
        num_groups: int,
    ) -> Tensor:
        reward_B = torch.where(scored_B, advantage_B, 0)
        has_B = scored_B & (length_B > 0)
        weight_B = length_B.to(reward_B.dtype)
        mean_P = segments.mean_within(reward_B, group_B, num_groups, has_B, weight_B)
        ddof = float(self.std == "unbiased")
        scale_P = self._deviation(
            reward_B - mean_P[group_B], weight_B, group_B, num_groups, has_B, ddof
        )
        scale_P = scale_P + self.eps
        token_B = segments.divided(reward_B - mean_P[group_B], scale_P[group_B])
        seen_P = segments.extreme(token_B.abs(), group_B, num_groups, has_B)
        if self.source_form == "code":
            padded_P = segments.count(group_B, num_groups, has_B & (length_B < max_length)) > 0
            seen_P = torch.where(padded_P, torch.maximum(seen_P, (mean_P / scale_P).abs()), seen_P)
        centred_B = segments.centred(reward_B, group_B, num_groups, scored_B)
        plain_P = segments.std(reward_B, group_B, num_groups, scored_B) + self.eps
        falls_B = (seen_P >= self.fallback_threshold)[group_B]
        advantage_B = torch.where(falls_B, segments.divided(centred_B, plain_P[group_B]), token_B)
        return torch.where(scored_B & (falls_B | has_B), advantage_B, 0)

    def _deviation(
        self, off_B: Tensor, weight_B: Tensor, key_B: Tensor, num: int, where_B: Tensor, ddof: float
    ) -> Tensor:
        """Deviation [P] over tokens; 0 for too few of them."""
        squares_P = segments.total((weight_B * off_B.square()).double(), key_B, num, where_B)
        free_P = segments.total(weight_B.double(), key_B, num, where_B) - ddof
        return (squares_P / free_P.clamp(min=1)).sqrt().to(off_B.dtype)
