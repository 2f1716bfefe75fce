"""Compare the half of a group that is high in some metric with the half that is low."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, require, require_one_of
from strop.method.schedule import Schedule
from strop.support.errors import UserError


@dataclass(frozen=True)
class CompareHalves:
    """The half that earns more gains: answers with high entropy (or long ones), or the others.

        advantage_i = mu * inter_i + (1 - mu) * intra_i,   intra_i = reward_i - mean of own half
        inter_i = reward_i - mean of the other half + beta (upper half) or - beta (lower half)
    The lower half is the floor(G / 2) rollouts of lowest metric, equal ones in row order. With
    alpha, inter for "length" is alpha reward_i - mean (upper) and reward_i - alpha mean (lower),
    for other metrics reward_i - alpha mean (upper) and alpha reward_i - mean (lower).
    mu_from "reward": mu is the mean reward of the step; "failure": 1 - that; "mu": the field.

    Reads: advantage_B [B] float, length_B, group_B [B] int, num_groups int, scored_B [B] bool,
    mask_T [T] bool, rollout_T [T] int; entropy_old_T [T] float for "entropy"; rng for "random".
    Writes: advantage_B [B] float.
    Source: arXiv 2509.23962, eq. 5 and 8; code biuboomc/CANON (core_algos.py).
    Differs from the source: alpha also scales the halves of "random".
    Nearest part: subtract_group_mean; equal to it at mu 0.5 with halves of equal size.
    Edges: group of one -> its reward; all equal -> 0 at alpha 1 and beta 0; unscored rollouts -> 0,
    in no half; mu from a mean reward outside [0, 1] -> UserError.
    """

    # "entropy" (mean over a rollout's policy tokens), "length" or "random". Default: paper.
    metric: str = "entropy"
    # Weight of the comparison between the halves. Default: released code (1).
    mu: float | Schedule = 1.0
    # Where mu comes from: "mu", "reward" or "failure". Default: released code (the number).
    mu_from: str = "mu"
    # Preference for one half: below 1 for high entropy, or for short answers. Default: paper (1).
    alpha: float = 1.0
    # Head start of the upper half, in reward units. Default: released code (0).
    beta: float = 0.0

    def __post_init__(self) -> None:
        require_one_of(self, "metric", ("entropy", "length", "random"))
        require_one_of(self, "mu_from", ("mu", "reward", "failure"))
        require(self, "mu", low=0.0, high=1.0)
        require(self, "alpha", low=0.0)
        require(self, "beta")

    def __call__(
        self,
        advantage_B: Tensor,
        length_B: Tensor,
        group_B: Tensor,
        scored_B: Tensor,
        mask_T: Tensor,
        rollout_T: Tensor,
        num_groups: int,
        entropy_old_T: Tensor | None = None,
        rng: torch.Generator | None = None,
    ) -> Result:
        num_B = advantage_B.shape[0]
        metric_B = length_B.double()
        if self.metric == "random":
            metric_B = torch.rand(num_B, generator=rng, dtype=torch.float64).to(group_B.device)
        elif self.metric == "entropy":
            if entropy_old_T is None:
                raise UserError("compare_halves by entropy reads entropy_old_T: give the entropy")
            metric_B = segments.mean(entropy_old_T, rollout_T, num_B, mask_T)
        size_P = segments.count(group_B, num_groups, scored_B)
        upper_B = segments.rank(metric_B, group_B, num_groups, scored_B) >= (size_P // 2)[group_B]
        half_B = 2 * group_B + upper_B.long()
        mean_H = segments.mean(advantage_B, half_B, 2 * num_groups, scored_B)
        own_B, other_B = mean_H[half_B], mean_H[2 * group_B + (~upper_B).long()]
        eager_B = upper_B if self.metric == "length" else ~upper_B
        of_own_B = torch.where(eager_B, self.alpha, 1.0).to(advantage_B.dtype)
        of_other_B = torch.where(eager_B, 1.0, self.alpha).to(advantage_B.dtype)
        head_start_B = torch.where(upper_B, self.beta, -self.beta).to(advantage_B.dtype)
        inter_B = of_own_B * advantage_B - of_other_B * other_B + head_start_B
        mu = self._mu(advantage_B, scored_B)
        mixed_B = mu * inter_B + (1 - mu) * (advantage_B - own_B)
        mixed_B = torch.where((size_P == 1)[group_B], advantage_B, mixed_B)
        ahead_P = mean_H.view(num_groups, 2)[:, 1] - mean_H.view(num_groups, 2)[:, 0]
        metrics = {"halves/mu": mu, "halves/lead_of_upper": segments.overall(ahead_P, size_P > 1)}
        return Result(torch.where(scored_B, mixed_B, 0), metrics=metrics)

    def _mu(self, reward_B: Tensor, scored_B: Tensor) -> float:
        """The weight of this step. Raises UserError for a mean reward outside [0, 1]."""
        if self.mu_from == "mu":
            assert not isinstance(self.mu, Schedule)
            return self.mu
        key_B = torch.zeros_like(scored_B, dtype=torch.int64)
        mean = float(segments.mean(reward_B, key_B, 1, scored_B))
        if not 0 <= mean <= 1:
            raise UserError(
                f"compare_halves takes mu from the mean reward, which is {mean:g}: rewards must "
                "lie between 0 and 1; change the reward function, or give mu"
            )
        return mean if self.mu_from == "reward" else 1 - mean
