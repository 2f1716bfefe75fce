"""Do not unlearn the beginnings and ends that good and bad rollouts of a prompt share."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, require
from strop.parts.advantage.weight._conflict import conflict_length


@dataclass(frozen=True)
class ProtectSharedTokens:
    """A token of a run that good and bad rollouts share is praised more and not blamed.

        advantage_t <- advantage_t * w_forward * w_backward;   in conflict: w = weight where
        reward_i > mean of the group, 0 where reward_i < mean;   not in conflict: w = 1

    Forward conflict: at this and all earlier places of the answer, the same place of a good and of
    a bad rollout of the group holds the same token. Backward: the same, counted from the end.
    With `share_out` the result is divided by max(1, rollout's tokens in conflict).

    Reads: advantage_T [T] float, reward_B [B] float, scored_B [B] bool, id_T, rollout_T [T] int,
    group_B [B] int, num_groups int, mask_T [T] bool.   Writes: advantage_T [T] float.
    Source: arXiv 2508.03772; code winstonsmith1897/GTPO (share_out is only there).
    Differs from the source: its backward pass masks other tokens than it means to, and its count
    takes places of both directions for the same; both are done right here.
    Nearest part: favour_early_marker.
    Edges: reward at the mean -> unchanged and in no conflict; a group without good or without bad
    rollouts -> unchanged; unscored and masked -> 0.
    """

    # Factor on good rollouts' tokens in conflict. Default: paper (2; 4 where both runs meet).
    weight: float = 2.0
    # Whether a rollout with more conflicts is trained on less. Default: paper (no).
    share_out: bool = False

    def __post_init__(self) -> None:
        require(self, "weight", low=0.0)

    def __call__(
        self,
        advantage_T: Tensor,
        reward_B: Tensor,
        scored_B: Tensor,
        id_T: Tensor,
        rollout_T: Tensor,
        group_B: Tensor,
        mask_T: Tensor,
        num_groups: int,
    ) -> Result:
        lead_B = segments.centred(reward_B, group_B, num_groups, scored_B)
        lead_B = torch.where(scored_B, lead_B, 0)
        counts_T = mask_T & segments.at(lead_B != 0, rollout_T)
        row, num = segments.rows_where(counts_T), group_B.shape[0]
        own_N, good_B = segments.at(rollout_T, row), lead_B > 0
        size_B = segments.count(own_N, num)
        start_B = size_B.cumsum(0) - size_B
        lines = (size_B, group_B, num_groups, good_B, segments.at(id_T, row))
        forward_B = conflict_length(start_B, 1, *lines)
        backward_B = conflict_length(start_B + size_B - 1, -1, *lines)
        place_N = torch.arange(row.shape[0], device=row.device) - segments.at(start_B, own_N)
        forward_N = place_N < segments.at(forward_B, own_N)
        backward_N = place_N >= segments.at(size_B - backward_B, own_N)
        base_B = torch.where(good_B, self.weight, 0.0).to(advantage_T.dtype)
        base_N = segments.at(base_B, own_N)
        factor_N = torch.where(forward_N, base_N, 1) * torch.where(backward_N, base_N, 1)
        if self.share_out:
            count_B = torch.minimum(forward_B + backward_B, size_B)
            factor_N = factor_N / segments.at(count_B.clamp(min=1), own_N)
        factor_T = torch.ones_like(advantage_T).index_put((row,), factor_N)
        shared_T = torch.zeros_like(mask_T).index_put((row,), forward_N | backward_N)
        learns_T = mask_T & segments.at(scored_B, rollout_T)
        metrics = {"shared_tokens/frac": segments.overall(shared_T, learns_T)}
        return Result(torch.where(learns_T, advantage_T * factor_T, 0), metrics=metrics)
