"""Centre each rollout's reward on the mean of rollouts in the same role."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result
from strop.parts.advantage.baseline._shift import shift_of


@dataclass(frozen=True)
class SubtractRoleMean:
    """A player learns from how much better it did than players of its role did on average.

        advantage_i = reward_i - mean_{j: same role, same pool} reward_j

    The pool is the prompt's group. With episode_B in its place the pool is the game, where players
    of one team then share a baseline; with role_B it is the whole step.

    Reads: advantage_B [B] float, role_B, pool_B (group_B unless renamed) [B] int, scored_B [B]
    bool.   Writes: advantage_B [B] float.
    Source: arXiv 2510.01586 (abstract: agents of one functional group share a mean-return
    baseline).
    Differs from the source: the source does not say over what the mean is taken.
    Nearest part: subtract_group_mean; equal to it where all have one role.
    Edges: alone in its role and pool -> 0; all equal -> exactly 0; unscored rollouts -> 0 and
    outside the mean.
    """

    columns: ClassVar[dict[str, str]] = {"pool_B": "group_B"}

    def __call__(
        self, advantage_B: Tensor, role_B: Tensor, pool_B: Tensor, scored_B: Tensor
    ) -> Result:
        key_B, num = segments.key_of(role_B, pool_B)
        centred_B = segments.centred(advantage_B, key_B, num, scored_B)
        centred_B = torch.where(scored_B, centred_B, 0)
        pool_B, pools = segments.key_of(pool_B)
        shift = shift_of(centred_B, advantage_B, pool_B, pools, scored_B)
        return Result(centred_B, metrics=shift)
