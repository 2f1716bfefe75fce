"""Learn only from the best answer of a prompt, by its lead over the second best."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result


@dataclass(frozen=True)
class CreditLeadOfBest:
    """Only the winner of a prompt raises the best of k answers; the others teach nothing.

        advantage_i = reward_i - second best reward of the group if i is the best, else 0

    Reads: advantage_B [B] float, group_B [B] int, num_groups int, scored_B [B] bool.
    Writes: advantage_B [B] float.
    Source: arXiv 2503.19595; code verl-project/verl core_algos.py (grpo_passk).
    Differs from the source: a group of one gives 0 (verl raises).
    Nearest part: subtract_group_mean with leave_one_out, whose baseline is the mean of the others.
    Edges: group of one, or a tie for the best -> all 0; unscored rollouts -> 0 and no rivals.
    """

    facts: ClassVar[frozenset[str]] = frozenset({"advantage_mean_is_not_zero"})

    def __call__(
        self, advantage_B: Tensor, group_B: Tensor, scored_B: Tensor, num_groups: int
    ) -> Result:
        place_B = segments.rank(-advantage_B, group_B, num_groups, scored_B)
        second_P = segments.total(advantage_B, group_B, num_groups, place_B == 1)
        winner_B = (place_B == 0) & (segments.count(group_B, num_groups, scored_B) > 1)[group_B]
        lead_B = torch.where(winner_B, advantage_B - second_P[group_B], 0)
        led_P = segments.count(group_B, num_groups, lead_B > 0) > 0
        there_P = segments.count(group_B, num_groups, scored_B) > 0
        metrics = {
            "lead/frac_groups": segments.overall(led_P, there_P),
            "lead/mean": segments.overall(lead_B, lead_B > 0),
        }
        return Result(lead_B, metrics=metrics)
