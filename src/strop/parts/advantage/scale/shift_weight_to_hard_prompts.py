"""Learn from easy prompts while the policy is weak, from hard ones once it is strong."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, require_one_of
from strop.parts.advantage.scale._success import success_of_groups, success_of_step


@dataclass(frozen=True)
class ShiftWeightToHardPrompts:
    """The better the step as a whole, the more weight have prompts that are seldom solved.

        advantage_i <- advantage_i / 2 * (omega / sqrt(p) + (1 - omega) / sqrt(1 - p))

    p is the mean reward of the prompt's group, omega that of the step's rollouts; rewards lie
    between 0 and 1. source_form "code": 1 - sqrt(p) in place of sqrt(1 - p), 1e-6 added to both
    denominators, and omega the mean of the groups' means.

    Reads: advantage_B, reward_B [B] float, group_B [B] int, num_groups int, scored_B [B] bool.
    Writes: advantage_B [B] float.
    Source: arXiv 2602.05548, eq. 11 and 12; code Yu7-code/A-GRAE.
    Differs from the source: no; the two forms are `source_form`.
    Nearest part: divide_by_group_std, after which every prompt weighs the same.
    Edges: p of 0 or 1 -> unchanged; unscored rollouts -> 0, in no mean; a reward
    outside [0, 1] -> UserError.
    """

    facts: ClassVar[frozenset[str]] = frozenset({"rewards_from_0_to_1"})
    # "paper" or "code". Default: paper (eq. 11).
    source_form: str = "paper"

    def __post_init__(self) -> None:
        require_one_of(self, "source_form", ("paper", "code"))

    def __call__(
        self,
        advantage_B: Tensor,
        reward_B: Tensor,
        group_B: Tensor,
        scored_B: Tensor,
        num_groups: int,
    ) -> Result:
        code = self.source_form == "code"
        reader = "shift_weight_to_hard_prompts"
        p_P = success_of_groups(reward_B, group_B, num_groups, scored_B, reader)
        omega = success_of_step(reward_B, p_P, group_B, scored_B, by_group=code)
        between_P = (p_P > 0) & (p_P < 1)
        sides = {"hard": between_P & (p_P <= 0.5), "easy": between_P & (p_P >= 0.5)}
        p_P = torch.where(between_P, p_P, 0.5)
        hard_P, easy_P = p_P.sqrt(), (1 - p_P).sqrt()
        if code:
            hard_P, easy_P = p_P.sqrt() + 1e-6, 1 - p_P.sqrt() + 1e-6
        factor_P = (omega / hard_P + (1 - omega) / easy_P) / 2
        weighted_B = advantage_B * torch.where(between_P, factor_P, 1)[group_B]
        metrics = {
            f"advantage/factor_{side}": segments.overall(factor_P, where_P)
            for side, where_P in sides.items()
            if bool(where_P.any())
        }
        return Result(torch.where(scored_B, weighted_B, 0), metrics=metrics)
