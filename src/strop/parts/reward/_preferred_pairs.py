"""Pairs of a prompt's rollouts, the loss of a linear reward on their preferences, and gradients."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import softplus

from strop.batch import segments


@dataclass(frozen=True)
class PreferredPairs:
    """Ordered pairs [B, B] of rollouts that are compared, under a reward with these weights.

    share: the weight of a pair; the pairs of each prompt have the same total. gap: reward of the
    row's rollout minus the column's. liked: 1, 1/2 or 0 if the row's preference is above, equal to
    or below the column's.
    """

    feature_BM: Tensor
    group_B: Tensor
    known_B: Tensor
    share_BB: Tensor
    gap_BB: Tensor
    liked_BB: Tensor

    @classmethod
    def of(
        cls, feature_BM: Tensor, preference_B: Tensor, group_B: Tensor, scored_B: Tensor,
        weights: Tensor,
    ) -> "PreferredPairs":  # fmt: skip
        """The pairs of rollouts that are scored and have a preference."""
        feature_BM, preference_B = feature_BM.double().cpu(), preference_B.double().cpu()
        group_B, known_B = group_B.cpu(), scored_B.cpu() & ~preference_B.isnan()
        worth_B, liked_B = feature_BM @ weights.cpu(), preference_B.nan_to_num()
        both = known_B[:, None] & known_B[None] & (group_B[:, None] == group_B[None])
        both = both & ~torch.eye(len(group_B), dtype=torch.bool)
        num = segments.count_of(group_B)
        pairs_B = segments.total(both.sum(1).double(), group_B, num)[group_B]
        prompts = (segments.count(group_B, num, both.any(1)) > 0).sum().clamp(min=1)
        share_BB = both / (pairs_B.clamp(min=1)[:, None] * prompts)
        order_BB = (liked_B[:, None] - liked_B[None]).sign()
        gap_BB = worth_B[:, None] - worth_B[None]
        return cls(feature_BM, group_B, known_B, share_BB, gap_BB, (1 + order_BB) / 2)

    @property
    def loss_BB(self) -> Tensor:
        """-liked log s(gap) - (1 - liked) log s(-gap), s the logistic function."""
        return softplus(self.gap_BB) - self.liked_BB * self.gap_BB

    def explicit(self) -> Tensor:
        """Gradient [M] of the mean loss by the weights, for these rollouts."""
        residual_BB = self.share_BB * (self.gap_BB.sigmoid() - self.liked_BB)
        return (residual_BB.sum(1) - residual_BB.sum(0)) @ self.feature_BM

    def implicit(self) -> Tensor:
        """The gradient [M] through the weights' effect on the rollouts' distribution, at price 1.

        Sum of share * loss * (phi_i + phi_j - 2 * mean of the prompt's other phi).
        """
        num = segments.count_of(self.group_B)
        size_B = segments.count(self.group_B, num, self.known_B)[self.group_B]
        blame_B = (self.share_BB * self.loss_BB).sum(1)
        sum_PM = torch.zeros(num, self.feature_BM.shape[1], dtype=torch.float64)
        sum_PM = sum_PM.index_add(0, self.group_B, self.feature_BM * self.known_B[:, None])
        off_BM = size_B[:, None] * self.feature_BM - sum_PM[self.group_B]
        weight_B = torch.where(size_B > 2, 2 * blame_B / (size_B - 2).clamp(min=1), 0)
        return weight_B @ off_BM

    def metrics(self) -> dict[str, float]:
        """Mean loss, and the share of decided pairs that the reward orders the same way."""
        decided_BB = (self.share_BB > 0) & (self.liked_BB != 0.5)
        alike_BB = decided_BB & ((self.gap_BB > 0) == (self.liked_BB == 1)) & (self.gap_BB != 0)
        found = {"parl/loss": float((self.share_BB * self.loss_BB).sum())}
        if bool(decided_BB.any()):
            found["parl/agreement"] = float(alike_BB.sum() / decided_BB.sum())
        return found
