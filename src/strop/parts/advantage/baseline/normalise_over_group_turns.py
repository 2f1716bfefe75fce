"""Measure each rollout against the average turn of its prompt's group, in turn deviations."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import require


@dataclass(frozen=True)
class NormaliseOverGroupTurns:
    """Every turn is a sample with its rollout's reward, so long episodes weigh more.

        mean, std (n - 1) over the turns of the group, each with its rollout's reward
        advantage_i = (reward_i - mean) / (std + eps)

    Reads: advantage_B [B] float, rollout_K [K] int, group_B [B] int, scored_B [B] bool, num_groups
    int.   Writes: advantage_B [B] float.
    Source: arXiv 2509.23866; code Computer-use-agents/dart-gui.
    Differs from the source: no.
    Nearest part: normalise_over_group_tokens, whose samples are tokens; subtract_group_mean and
    divide_by_group_std are equal to it where every rollout has one turn.
    Edges: all equal, or one turn -> 0; unscored rollouts -> 0 and outside the moments.
    """

    # Added to the deviation; in reward units. Default: released code (1e-6).
    eps: float = 1e-6

    def __post_init__(self) -> None:
        require(self, "eps", low=0.0)

    def __call__(
        self, advantage_B: Tensor, rollout_K: Tensor, group_B: Tensor, scored_B: Tensor,
        num_groups: int,
    ) -> Tensor:  # fmt: skip
        reward_K, scored_K, group_K = (
            column[rollout_K] for column in (advantage_B, scored_B, group_B)
        )
        centred_K = segments.centred(reward_K, group_K, num_groups, scored_K)
        std_P = segments.std(reward_K, group_K, num_groups, scored_K)
        size_K = segments.divided(centred_K, (std_P + self.eps)[group_K])
        found_B = segments.mean(size_K, rollout_K, advantage_B.shape[0], scored_K)
        return torch.where(scored_B, found_B, 0)
