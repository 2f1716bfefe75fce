"""Centre each rollout's reward on that of the prompt's most likely answer."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result


@dataclass(frozen=True)
class SubtractGreedyReward:
    """A rollout learns from how much better it did than the policy's greedy answer.

        advantage_i = reward_i - reward of the greedy rollout of its prompt

    Reads: advantage_B [B] float, greedy_reward_B [B] float, scored_B [B] bool.
    Writes: advantage_B [B] float.
    Source: arXiv 2310.10505 (the ReMax baseline).
    Differs from the source: no.
    Nearest part: subtract_group_mean, whose baseline is the samples themselves.
    Edges: equal to the greedy reward -> exactly 0; unscored rollouts -> 0.
    """

    def __call__(self, advantage_B: Tensor, greedy_reward_B: Tensor, scored_B: Tensor) -> Result:
        centred_B = torch.where(scored_B, advantage_B - greedy_reward_B.to(advantage_B.dtype), 0)
        metrics = {"greedy/reward": segments.overall(greedy_reward_B, scored_B)}
        return Result(centred_B, metrics=metrics)
