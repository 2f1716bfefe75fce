"""Pay right answers in a rare form more than right answers in the usual one."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, require
from strop.parts.advantage.scale._success import require_rates


@dataclass(frozen=True)
class BoostRareFormats:
    """No form of answering dies out while it still works, until the boost has faded.

        advantage_i = alpha_i reward_i
        alpha_i = 1 + boost * (G / F_i - 1) * (1 + cos(pi step / num_steps)) / 2

    F_i of the G scored rollouts of the group have the format of i. The part stands first in
    a chain. A format below 0 is unknown: its reward is 0.

    Reads: reward_B [B] float, format_B [B] int, group_B [B] int, num_groups int, scored_B [B] bool,
    step, num_steps [] int.   Writes: advantage_B [B] float.
    Source: arXiv 2505.20258 (Ada-GRPO); code TEAM-ARM/ARM.
    Differs from the source: an unknown format is paid nothing; there it must have failed already.
    Nearest part: shift_weight_to_hard_prompts, which weighs whole prompts.
    Edges: one format -> unchanged; last step -> unchanged; a reward outside [0, 1] -> UserError,
    since a negative one would punish rare formats most.
    """

    facts: ClassVar[frozenset[str]] = frozenset({"rewards_from_0_to_1"})
    # How much of the whole factor G / F is given at the start; a share. Default: paper (all).
    boost: float = 1.0

    def __post_init__(self) -> None:
        require(self, "boost", low=0.0, high=1.0)

    def __call__(
        self,
        reward_B: Tensor,
        format_B: Tensor,
        group_B: Tensor,
        scored_B: Tensor,
        step: Tensor,
        num_steps: Tensor,
        num_groups: int,
    ) -> Result:
        require_rates(reward_B, scored_B, "boost_rare_formats")
        key_B, num = segments.key_of(group_B, format_B)
        same_B = segments.count(key_B, num, scored_B).clamp(min=1)[key_B]
        size_B = segments.count(group_B, num_groups, scored_B)[group_B]
        fade = (1 + torch.cos(torch.pi * step.double() / num_steps.double().clamp(min=1))) / 2
        alpha_B = 1 + self.boost * fade * (size_B / same_B - 1).clamp(min=0)
        known_B = scored_B & (format_B >= 0)
        boosted_B = torch.where(known_B, alpha_B.to(reward_B.dtype) * reward_B, 0)
        metrics = {"formats/boost_mean": segments.overall(alpha_B, known_B)}
        return Result(boosted_B, metrics=metrics)
