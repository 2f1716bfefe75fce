"""Give the rewards of a rollout other weights in the first part of the run than in the rest."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.method.part import require
from strop.support.errors import UserError


@dataclass(frozen=True)
class WeighRewardsByPhase:
    """The rewards that matter most early in a run give way to those that matter most late in it.

        reward_i <- sum_m w_m reward_im, over the rewards that apply to rollout i
        w = first while step <= share * num_steps, then second

    Reads: reward_BM [B, M], reward_B [B] float, scored_B [B] bool, step, num_steps int.
    Writes: reward_B [B] float.
    Source: arXiv 2510.01586 (safety weighs more in the first half, the task in the second).
    Differs from the source: its weights were not found.
    Nearest part: rescale_reward; equal to it with one reward and equal weights.
    Edges: no weights in a phase -> reward_B is unchanged; no reward applies to a rollout -> 0;
    unscored -> unchanged; outcome_B stays as it was.
    """

    # Weights of the rewards in their order, the environment's own first. Default: ours (none; the
    # source's were not found).
    first: tuple[float, ...] = ()
    # The same afterwards. Default: ours (none).
    second: tuple[float, ...] = ()
    # Share of the run's steps that is the first part. Default: paper (half).
    share: float = 0.5

    def __post_init__(self) -> None:
        require(self, "share", low=0.0, high=1.0)

    def __call__(
        self, reward_BM: Tensor, reward_B: Tensor, scored_B: Tensor, step: Tensor, num_steps: Tensor
    ) -> Tensor:
        weights = self.first if int(step) <= self.share * int(num_steps) else self.second
        if not weights:
            return reward_B
        if len(weights) != reward_BM.shape[1]:
            raise UserError(
                f"weigh_rewards_by_phase has {len(weights)} weights for "
                f"{reward_BM.shape[1]} rewards"
            )
        found_B = (reward_BM.nan_to_num(0.0) * reward_BM.new_tensor(weights)).sum(1)
        return torch.where(scored_B, found_B.to(reward_B.dtype), reward_B)
