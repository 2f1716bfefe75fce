"""Pay for turns that the environment answered, for as long as a schedule says."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, require
from strop.method.schedule import Schedule


@dataclass(frozen=True)
class RewardAnsweredTurns:
    """Tool use earns a bonus at first, so that the policy learns it before it pays off.

        reward_i <- reward_i + weight * min(1, rate * answered_i),  answered_i = turns_i - 1

    A turn is answered if another one follows it: all turns before the final answer.
    Metric: reward/turn_bonus (mean of what was added).

    Reads: reward_B [B] float, scored_B [B] bool, rollout_K [K] int, num_rollouts int.
    Writes: reward_B [B] float.
    Source: arXiv 2509.22601 (code TencentYoutuResearch/SPEAR: reward of tool calls).
    Differs from the source: no.
    Nearest part: rescale_reward, which knows no turns.
    Edges: one turn -> nothing is added; weight 0 -> all stays; unscored rollouts stay.
    """

    # Bonus of a turn, reward units. Default: paper (0.1).
    rate: float = 0.1
    # Weight of the bonus; may change over the run. Default: ours (all of it).
    weight: float | Schedule = 1.0

    def __post_init__(self) -> None:
        require(self, "rate", "weight", low=0.0)

    def __call__(
        self, reward_B: Tensor, scored_B: Tensor, rollout_K: Tensor, num_rollouts: int
    ) -> Result:
        assert not isinstance(self.weight, Schedule)  # a part is called with its number of the step
        answered_B = segments.count(rollout_K, num_rollouts) - 1
        bonus_B = self.weight * (self.rate * answered_B).clamp(0, 1).to(reward_B.dtype)
        bonus_B = torch.where(scored_B, bonus_B, 0)
        metrics = {"reward/turn_bonus": float(bonus_B.double().mean())} if num_rollouts else {}
        return Result(reward_B + bonus_B, metrics=metrics)
