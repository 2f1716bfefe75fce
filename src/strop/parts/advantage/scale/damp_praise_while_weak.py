"""Hold back praise while the policy seldom succeeds."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.method.part import Result, require, require_one_of
from strop.parts.advantage.scale._success import success_of_groups, success_of_step


@dataclass(frozen=True)
class DampPraiseWhileWeak:
    """A policy that seldom succeeds mostly learns what not to do, so that it keeps exploring.

        advantage_i > 0: advantage_i <- advantage_i * min(1, omega / alpha)

    omega is the mean reward of the step's rollouts ("paper") or the mean of its groups' means
    ("code"); rewards lie between 0 and 1.

    Reads: advantage_B, reward_B [B] float, group_B [B] int, num_groups int, scored_B [B] bool.
    Writes: advantage_B [B] float.
    Source: arXiv 2602.05548, eq. 13; code Yu7-code/A-GRAE.
    Differs from the source: no; the two forms are `source_form`.
    Nearest part: shift_weight_to_hard_prompts, which weighs prompts and not signs.
    Edges: omega >= alpha -> unchanged; unscored rollouts -> 0, in no mean; a reward
    outside [0, 1] -> UserError.
    """

    facts: ClassVar[frozenset[str]] = frozenset(
        {"advantage_mean_is_not_zero", "rewards_from_0_to_1"}
    )
    # Success from which praise has its full size. Default: paper (mathematics; 0.5 for geometry).
    alpha: float = 1.0
    # "paper" or "code". Default: paper (eq. 13).
    source_form: str = "paper"

    def __post_init__(self) -> None:
        require(self, "alpha", low=1e-6, high=1.0)
        require_one_of(self, "source_form", ("paper", "code"))

    def __call__(
        self,
        advantage_B: Tensor,
        reward_B: Tensor,
        group_B: Tensor,
        scored_B: Tensor,
        num_groups: int,
    ) -> Result:
        p_P = success_of_groups(reward_B, group_B, num_groups, scored_B, "damp_praise_while_weak")
        by_group = self.source_form == "code"
        omega = success_of_step(reward_B, p_P, group_B, scored_B, by_group)
        factor = (omega / self.alpha).clamp(max=1)
        damped_B = torch.where(advantage_B > 0, advantage_B * factor, advantage_B)
        metrics = {"advantage/praise_factor": float(factor)}
        return Result(torch.where(scored_B, damped_B, 0), metrics=metrics)
