"""Learn more from the rollouts that the policy was surer of than of others of their prompt."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, require


@dataclass(frozen=True)
class FavourSureRollouts:
    """A rollout whose tokens had more entropy than its group's learns less.

        advantage_i <- advantage_i * (1 + (mean_{j in group} H_j - H_i) / (mean_j H_j + eps))

    H_i is the mean entropy of rollout i's policy tokens, in nats. With `keep_sign` the factor,
    negative where H_i is more than twice the group's mean, is at least 0.

    Reads: advantage_B [B] float, entropy_old_T [T] float, mask_T [T] bool, rollout_T [T] int,
    group_B [B] int, num_groups int, scored_B [B] bool.   Writes: advantage_B [B] float.
    Source: arXiv 2508.11356 (entropy-based advantage reshaping).
    Differs from the source: the mean is taken over the group, which is inferred; the paper does
    not say what becomes of a negative factor.
    Nearest part: blame_overconfident_errors, which compares with the reference.
    Edges: group of one, or equal entropies -> unchanged; unscored -> 0 and outside the mean.
    """

    # Whether the factor is held at 0 or above. Default: ours (no: the equation as it is given).
    keep_sign: bool = False
    # Added to the mean entropy, nats. Default: ours (not given in the paper).
    eps: float = 1e-8

    def __post_init__(self) -> None:
        require(self, "eps", low=0.0)

    def __call__(
        self,
        advantage_B: Tensor,
        entropy_old_T: Tensor,
        mask_T: Tensor,
        rollout_T: Tensor,
        group_B: Tensor,
        scored_B: Tensor,
        num_groups: int,
    ) -> Result:
        own_B = segments.mean(entropy_old_T, rollout_T, group_B.shape[0], mask_T)
        mean_P = segments.mean(own_B, group_B, num_groups, scored_B)
        below_B = -segments.centred(own_B, group_B, num_groups, scored_B)
        factor_B = 1 + segments.divided(below_B, mean_P[group_B] + self.eps)
        factor_B = factor_B.clamp(min=0) if self.keep_sign else factor_B
        metrics = {
            "advantage/entropy_factor_change": segments.overall((factor_B - 1).abs(), scored_B)
        }
        weighed_B = torch.where(scored_B, advantage_B * factor_B.to(advantage_B.dtype), 0)
        return Result(weighed_B, metrics=metrics)
