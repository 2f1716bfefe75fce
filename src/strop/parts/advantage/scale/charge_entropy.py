"""Let rollouts pay for how unsure the policy was of them."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import require


@dataclass(frozen=True)
class ChargeEntropy:
    """A rollout's advantage falls with the mean entropy of its tokens.

        advantage_i <- advantage_i - cost * H_i,  H_i = mean_{t in i} entropy_old_t

    Reads: advantage_B [B] float, entropy_old_T [T] float, mask_T [T] bool, rollout_T [T] int,
    scored_B [B] bool.   Writes: advantage_B [B] float.
    Source: arXiv 2508.03772; code winstonsmith1897/GTPO.
    Differs from the source: its code clamps probabilities at 1e-6 in the entropy.
    Nearest part: favour_sure_rollouts, which compares with the group and multiplies.
    Edges: a group of equal rewards still pays, so all of it becomes less likely; unscored -> 0.
    """

    # Reward units per nat. Default: paper (0.1).
    cost: float = 0.1

    def __post_init__(self) -> None:
        require(self, "cost", low=0.0)

    def __call__(
        self,
        advantage_B: Tensor,
        entropy_old_T: Tensor,
        mask_T: Tensor,
        rollout_T: Tensor,
        scored_B: Tensor,
    ) -> Tensor:
        own_B = segments.mean(entropy_old_T, rollout_T, scored_B.shape[0], mask_T)
        return torch.where(scored_B, advantage_B - self.cost * own_B.to(advantage_B.dtype), 0)
