"""Judge rollouts by reward and by how clearly they saw their prompt, each as far as it informs."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, require


@dataclass(frozen=True)
class FuseNoisePrior:
    """Where rewards hardly differ, rollouts that saw the prompt clearly count as better ones.

        norm(x) = (x - mean_g) / (std_g + eps), std with n - 1
        P = p_alpha / (std_g(reward)^2 + p_alpha);  K = P / (P + r)
        advantage = norm(norm(reward) + K (norm(1 - noise_level) - norm(reward)))

    Metric: noise/gain_mean (K over groups with a scored rollout).

    Reads: advantage_B [B] float (the reward), noise_level_B [B] float, group_B [B] int, num_groups
    int, scored_B [B] bool.   Writes: advantage_B [B] float.
    Source: arXiv 2510.21122; code Artanic30/NoisyGRPO (noisy_grpo_trainer.py).
    Differs from the source: its mask of noisy rollouts that beat the worst clean one, which is off
    there, is left out.
    Nearest part: divide_by_group_std; for large r it is grpo, with eps counted twice.
    Edges: group of one -> 0; equal rewards -> the prior alone, right or wrong (0 where
    learn_from_uniform is false); equal levels -> grpo but for eps; unscored rollouts -> 0.
    """

    # Weight of the prior's variance. Default: released code.
    p_alpha: float = 0.01
    # Variance of the observation. Default: released code.
    r: float = 0.1
    # Added to deviations. Default: released code.
    eps: float = 1e-4
    # Whether groups of equal rewards follow the prior. Default: released code (they do).
    learn_from_uniform: bool = True

    def __post_init__(self) -> None:
        require(self, "p_alpha", low=1e-12)
        require(self, "r", "eps", low=0.0)

    @property
    def facts(self) -> frozenset[str]:
        """Groups of one outcome teach unless learn_from_uniform is false."""
        return frozenset({"learns_from_uniform_groups"} if self.learn_from_uniform else ())

    def __call__(
        self,
        advantage_B: Tensor,
        noise_level_B: Tensor,
        group_B: Tensor,
        scored_B: Tensor,
        num_groups: int,
    ) -> Result:

        def norm(values_B: Tensor) -> Tensor:
            std_P = segments.std(values_B, group_B, num_groups, scored_B)
            centred_B = segments.centred(values_B, group_B, num_groups, scored_B)
            size_B = segments.divided(centred_B, (std_P + self.eps)[group_B])
            return torch.where(scored_B, size_B, 0)

        std_P = segments.std(advantage_B, group_B, num_groups, scored_B)
        prior_P = self.p_alpha / (std_P.square() + self.p_alpha)
        gain_P = prior_P / (prior_P + self.r)
        seen_B = norm(advantage_B)
        prior_B = norm((1 - noise_level_B).to(advantage_B.dtype))
        fused_B = norm(seen_B + gain_P[group_B] * (prior_B - seen_B))
        if not self.learn_from_uniform:
            fused_B = torch.where((std_P > 0)[group_B], fused_B, 0)
        there_P = segments.count(group_B, num_groups, scored_B) > 0
        return Result(fused_B, metrics={"noise/gain_mean": segments.overall(gain_P, there_P)})
