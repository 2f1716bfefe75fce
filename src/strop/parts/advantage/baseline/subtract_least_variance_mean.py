"""Centre rewards on the mean that makes the gradient of old answers vary least."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, require
from strop.parts.advantage.baseline._shift import shift_of


@dataclass(frozen=True)
class SubtractLeastVarianceMean:
    """A rollout learns from its lead over its group's mean, those that push hard counting most.

        advantage_i = reward_i - sum_j W_j reward_j / (sum_j W_j + eps),  W_j = (w_j n_j)^2

    w is the importance weight of the rollout, n the norm of its score's gradient; with cap, W has
    a further factor min(w_j, cap)^2. With winsor the rewards are first held between the group's
    winsor and 1 - winsor quantiles by weight. The mean stays within the group's rewards.

    Reads: advantage_B, sequence_is_weight_B, grad_norm_B [B] float, group_B [B] int, num_groups
    int, scored_B [B] bool.   Writes: advantage_B [B] float.
    Source: arXiv 2602.17616 (optimal off-policy baseline); code mit-han-lab/vcpo
    (compute_opob_baseline).
    Differs from the source: no; the cap is what the code does against its intention: its gradients
    already carry the truncated weight.
    Nearest part: subtract_length_weighted_mean, whose weights are lengths.
    Edges: group of one -> 0; all equal -> exactly 0, also where no rollout has weight; unscored
    rollouts -> 0 and outside the mean.
    """

    # Added to the sum of the weights. Default: released code.
    eps: float = 1e-8
    # Share of the weight at either end whose rewards are moved in; 0: none. Default: released code
    # (none; its winsorised form has 0.05).
    winsor: float = 0.0
    # Cap of a further factor w^2 of W, as in the released code; 0: none. Default: paper (none).
    cap: float = 0.0

    def __post_init__(self) -> None:
        require(self, "eps", "cap", low=0.0)
        require(self, "winsor", low=0.0, high=0.5)

    def __call__(
        self,
        advantage_B: Tensor,
        sequence_is_weight_B: Tensor,
        grad_norm_B: Tensor,
        group_B: Tensor,
        scored_B: Tensor,
        num_groups: int,
    ) -> Result:
        weight_B = (sequence_is_weight_B.double() * grad_norm_B.double()).square()
        if self.cap:
            weight_B = weight_B * sequence_is_weight_B.double().clamp(max=self.cap).square()
        weight_B = torch.where(scored_B, weight_B, 0)
        low_P = segments.extreme(advantage_B, group_B, num_groups, scored_B, largest=False)
        high_P = segments.extreme(advantage_B, group_B, num_groups, scored_B, largest=True)
        held_B = advantage_B.double()
        if self.winsor:
            held_B = self._held(held_B, weight_B, group_B, num_groups, scored_B)
        total_P = segments.total(weight_B, group_B, num_groups)
        sum_P = segments.total(held_B * weight_B, group_B, num_groups, scored_B)
        mean_P = (sum_P / (total_P + self.eps)).nan_to_num().to(advantage_B.dtype)
        mean_P = torch.minimum(torch.maximum(mean_P, low_P), high_P)
        centred_B = torch.where(scored_B, advantage_B - mean_P[group_B], 0)
        shift = shift_of(centred_B, advantage_B, group_B, num_groups, scored_B)
        return Result(centred_B, metrics=shift)

    def _held(
        self, reward_B: Tensor, weight_B: Tensor, group_B: Tensor, num: int, scored_B: Tensor
    ) -> Tensor:
        """Rewards clamped to those at which the summed weight reaches winsor and 1 - winsor."""
        order = torch.argsort(reward_B, stable=True)
        order = order[torch.argsort(group_B[order], stable=True)]
        group, weight, reward = group_B[order], weight_B[order], reward_B[order]
        total_P = segments.total(weight_B, group_B, num)
        # As shares: of weights, a sum over all groups would lose those of the lightest ones.
        until = segments.sum_until(segments.divided(weight, total_P[group]), group, num)

        def first_at(share: float) -> Tensor:
            reached = scored_B[order] & (until >= share * (1 - 1e-9))
            return segments.extreme(reward, group, num, reached, largest=False)[group_B]

        low_B, high_B = first_at(self.winsor), first_at(1 - self.winsor)
        return torch.minimum(torch.maximum(reward_B, low_B), high_B)
