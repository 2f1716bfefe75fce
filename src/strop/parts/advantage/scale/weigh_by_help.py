"""Credit success without help more, and blame failure with help more."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, require


@dataclass(frozen=True)
class WeighByHelp:
    """How hard a prompt was with and without help decides what a rollout's result means.

        plain rollout (stage 0), A > 0:  A <- A * (1 + strength * (1 - p_hinted))
        hinted rollout (stage 1), A < 0: A <- A * (1 + strength * p_plain)

    p: mean outcome of the group's scored rollouts of that stage, held within [0, 1].

    Reads: advantage_B, outcome_B [B] float, stage_B, group_B [B] int, num_groups int, scored_B [B]
    bool.   Writes: advantage_B [B] float.
    Source: arXiv 2512.13095 (advantages with a posterior of rollout difficulty).
    Differs from the source: it says which results count more, not by how much: factors are ours.
    Nearest part: divide_by_group_std, which measures both kinds alike.
    Edges: a group without the other kind -> unchanged; strength 0 -> unchanged; unscored -> 0.
    """

    # Largest addition to the factor 1. Default: ours (1).
    strength: float = 1.0

    def __post_init__(self) -> None:
        require(self, "strength", low=0.0)

    def __call__(
        self,
        advantage_B: Tensor,
        outcome_B: Tensor,
        stage_B: Tensor,
        group_B: Tensor,
        scored_B: Tensor,
        num_groups: int,
    ) -> Result:
        plain_B, hinted_B = scored_B & (stage_B == 0), scored_B & (stage_B == 1)
        solved_P = segments.mean(outcome_B, group_B, num_groups, plain_B).clamp(0, 1)
        helped_P = segments.mean(outcome_B, group_B, num_groups, hinted_B).clamp(0, 1)
        both_P = (segments.count(group_B, num_groups, plain_B) > 0) & (
            segments.count(group_B, num_groups, hinted_B) > 0
        )
        extra_B = torch.where(plain_B & (advantage_B > 0), 1 - helped_P[group_B], 0)
        extra_B = torch.where(hinted_B & (advantage_B < 0), solved_P[group_B], extra_B)
        factor_B = torch.where(both_P[group_B], 1 + self.strength * extra_B, 1)
        weighed_B = torch.where(scored_B, advantage_B * factor_B.to(advantage_B.dtype), 0)
        metrics = {"hints/help": segments.overall(helped_P - solved_P, both_P)}
        return Result(weighed_B, metrics=metrics)
