"""Reward each answer of a conversation with what all of them earned."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result


@dataclass(frozen=True)
class RewardAsTeam:
    """The first answer learns to help the second, which reads it: each is paid for both.

        reward_i <- sum of reward_j over the scored answers j of i's conversation

    Metrics, over conversations whose two answers are scored: team/first, team/second (mean outcome
    by stage), team/reward (mean of the sum).

    Reads: reward_B, outcome_B [B] float, stage_B, conversation_B [B] int, scored_B [B] bool.
    Writes: reward_B [B] float.
    Source: arXiv 2410.06101 (the sum of both agents' rewards).
    Differs from the source: no.
    Nearest part: reward_improvement, which pays the second answer alone.
    Edges: an answer alone keeps its reward; unscored answers stay and add nothing.
    """

    def __call__(
        self, reward_B: Tensor, outcome_B: Tensor, stage_B: Tensor, conversation_B: Tensor,
        scored_B: Tensor,
    ) -> Result:  # fmt: skip
        key_B, num = segments.key_of(conversation_B)
        sum_B = segments.total(reward_B, key_B, num, scored_B)[key_B]
        both_B = scored_B & (segments.count(key_B, num, scored_B) == 2)[key_B]
        metrics = {}
        for name, stage, of_B in (
            ("team/first", 0, outcome_B), ("team/second", 1, outcome_B), ("team/reward", 0, sum_B)
        ):  # fmt: skip
            here_B = both_B & (stage_B == stage)
            if here_B.any():
                metrics[name] = float(of_B[here_B].double().sum() / here_B.sum())
        return Result(torch.where(scored_B, sum_B, reward_B), metrics=metrics)
