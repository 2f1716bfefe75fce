"""Reward skills that help again, and charge answers without any."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.method.part import Result, require


@dataclass(frozen=True)
class RewardReusedSkills:
    """A function that solves a second task is worth more than one that solves only its own.

        a reuse: answer j calls a skill that answer i of its chain saved, and both are right
        reward <- missing for an answer that neither defines nor calls a skill, else
                  reward + bonus for its part in a reuse, once: as user (j), with pays_author as
                  author (i) too

    Metrics, over scored answers: skills/frac_used (answers after the first of a chain that call a
    skill), skills/frac_reused (of them those in a reuse), skills/frac_missing.

    Reads: reward_B, outcome_B [B] float, stage_B, chain_B, called_B [B] int, skilful_B, scored_B
    [B] bool.   Writes: reward_B [B] float.
    Source: arXiv 2512.17102 (skill-integrated reward).
    Differs from the source: size and receivers of the bonus were not found.
    Nearest part: reward_improvement, which compares two answers to one prompt.
    Edges: a chain of one answer -> no bonus; unscored answers stay, and make no reuse.
    """

    # Bonus of a reuse, reward units. Default: ours (half of a success; not found).
    bonus: float = 0.5
    # Reward of an answer without a skill. Default: paper (-1).
    missing: float = -1.0
    # Whether the answer that defined it gets the bonus too. Default: ours (yes; not found).
    pays_author: bool = True

    def __post_init__(self) -> None:
        require(self, "bonus", low=0.0)
        require(self, "missing")

    def __call__(
        self, reward_B: Tensor, outcome_B: Tensor, stage_B: Tensor, chain_B: Tensor,
        called_B: Tensor, skilful_B: Tensor, scored_B: Tensor,
    ) -> Result:  # fmt: skip
        right_B = scored_B & (outcome_B >= 1)
        user_B = right_B & (called_B > 0)
        author_B = torch.zeros_like(user_B)
        keys, key_B = torch.unique(chain_B, return_inverse=True)
        for stage in range(int(stage_B.max()) if len(stage_B) else 0):
            helped_B = user_B & ((called_B >> stage) & 1 > 0)
            helped_N = torch.zeros(len(keys), dtype=torch.bool, device=key_B.device)
            helped_N[key_B[helped_B]] = True
            author_B |= right_B & (stage_B == stage) & helped_N[key_B]
        paid_B = user_B | author_B if self.pays_author else user_B
        found_B = reward_B + self.bonus * paid_B.to(reward_B.dtype)
        found_B = torch.where(scored_B & ~skilful_B, self.missing, found_B)
        missing = int((scored_B & ~skilful_B).sum())
        later = int((scored_B & (stage_B > 0)).sum())
        used = int((scored_B & (called_B > 0)).sum())
        metrics = {
            "skills/frac_used": used / max(later, 1),
            "skills/frac_reused": int(user_B.sum()) / max(later, 1),
            "skills/frac_missing": missing / max(int(scored_B.sum()), 1),
        }
        return Result(found_B, metrics=metrics)
