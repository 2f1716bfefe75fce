"""Compare rollouts by each reward function on its own, then add the comparisons up."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, require, require_one_of
from strop.support.errors import UserError


@dataclass(frozen=True)
class NormaliseEachReward:
    """A right but badly formatted answer differs from a wrong but well formatted one.

        advantage_i = sum_m weight_m * (reward_im - mean_g reward_m) / (std_g reward_m + eps)

    m runs over the reward functions, g is the rollout's group. A reward that a function did not
    give (NaN) adds 0 and is outside its mean and deviation.

    Reads: reward_BM [B, M] float, group_B [B] int, num_groups int, scored_B [B] bool;
    reward_weight_BM [B, M] float where given and `weights` is empty.
    Writes: advantage_B [B] float.
    Source: arXiv 2601.05242 (group reward-decoupled normalisation); code verl-project/verl and
    huggingface/trl (normalize_then_sum).
    Differs from the source: no.
    Nearest part: subtract_group_mean, which sees the sum of the rewards only.
    Edges: group of one -> by `singleton`, divided by 1 + eps; the only reward of several rollouts
    and equal rewards add exactly 0; unscored rollouts -> 0 and outside the statistics; as many
    weights as reward functions, or none: else UserError.
    """

    # Weight of every reward function; empty: those of the run, or 1. Default: ours (empty).
    weights: tuple[float, ...] = ()
    # Added to the deviation; in reward units. Default: released code (TRL; verl has 1e-6).
    eps: float = 1e-4
    # What a group of one gets: "raw" (its rewards) or "zero". Default: released code (verl).
    singleton: str = "raw"

    def __post_init__(self) -> None:
        require(self, "eps", low=0.0)
        require_one_of(self, "singleton", ("raw", "zero"))

    def __call__(
        self,
        reward_BM: Tensor,
        group_B: Tensor,
        scored_B: Tensor,
        num_groups: int,
        reward_weight_BM: Tensor | None = None,
    ) -> Result:
        num_B, num_M = reward_BM.shape
        num = num_groups * num_M
        key_N = (group_B[:, None] * num_M + torch.arange(num_M, device=group_B.device)).flatten()
        there_N = (scored_B[:, None] & ~reward_BM.isnan()).flatten()
        reward_N = reward_BM.flatten()
        alone_N = segments.count(key_N, num, there_N)[key_N] == 1
        z_N = segments.centred(reward_N, key_N, num, there_N)
        single_B = segments.count(group_B, num_groups)[group_B] == 1
        raw_N = single_B.repeat_interleave(num_M) & (self.singleton == "raw")
        z_N = torch.where(alone_N, torch.where(raw_N, reward_N, 0), z_N)
        std_M = segments.std(reward_N, key_N, num, there_N)
        judged_M = segments.count(key_N, num, there_N) > 0
        metrics = {"rewards/frac_spread": segments.overall(std_M > 0, judged_M)}
        std_N = torch.where(alone_N, 1.0, std_M[key_N])
        z_N = torch.where(there_N, segments.divided(z_N, std_N + self.eps), 0)
        z_N = z_N * self._weights(reward_BM, reward_weight_BM).flatten()
        row_N = torch.arange(num_B, device=group_B.device).repeat_interleave(num_M)
        return Result(segments.total(z_N, row_N, num_B), metrics=metrics)

    def _weights(self, reward_BM: Tensor, reward_weight_BM: Tensor | None) -> Tensor:
        if self.weights:
            if len(self.weights) != reward_BM.shape[1]:
                raise UserError(
                    f"normalise_each_reward has {len(self.weights)} weights for "
                    f"{reward_BM.shape[1]} reward functions: give one each, or none"
                )
            return reward_BM.new_tensor(self.weights).expand(reward_BM.shape)
        if reward_weight_BM is not None:
            return reward_weight_BM.to(reward_BM.dtype)
        return torch.ones_like(reward_BM)
