"""Give the tokens that several rollouts share the mean of those rollouts' advantages."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.advantage.credit._lineage import node_values, pairs_of, position_of


@dataclass(frozen=True)
class AverageSharedPrefixes:
    """A token that several rollouts have from one draw learns by what they earned together.

        advantage_t = mean of advantage_j over the group's rollouts j that have token t by descent

    Reads: advantage_B [B] float, scored_B [B] bool, group_B, parent_B, fork_at_B, length_B [B] int,
    num_groups int, rollout_T [T] int, mask_T [T] bool.   Writes: advantage_T [T] float.
    Source: arXiv 2507.19849 (hard advantage estimation).
    Differs from the source: no.
    Nearest part: spread_evenly; equal to it where nothing forks.
    Edges: equal advantages -> exactly them; unscored -> 0 and in no mean; a rollout whose parent
    left the batch counts as one that began at the prompt.
    """

    def __call__(
        self,
        advantage_B: Tensor,
        scored_B: Tensor,
        group_B: Tensor,
        parent_B: Tensor,
        fork_at_B: Tensor,
        length_B: Tensor,
        rollout_T: Tensor,
        mask_T: Tensor,
        num_groups: int,
    ) -> Tensor:
        pairs = pairs_of(group_B, num_groups, parent_B, fork_at_B, length_B)
        pairs = pairs.where(scored_B[pairs.one_N] & scored_B[pairs.other_N])
        position_T = position_of(rollout_T, mask_T, advantage_B.shape[0])
        learns_T = mask_T & scored_B[rollout_T]
        if not bool(learns_T.any()):
            return advantage_B.new_zeros(mask_T.shape)
        width = int(torch.maximum(length_B.max(), position_T.max())) + 2
        key_N, order_N = torch.sort(pairs.one_N * width + pairs.common_N)
        value_N = node_values(pairs, advantage_B)[order_N]
        # The rollouts that share a token are those that share the stretch that it lies in.
        end_T = torch.searchsorted(key_N, rollout_T * width + position_T, right=True)
        end_T = torch.where(learns_T, end_T, 0)
        return torch.where(learns_T, value_N[end_T], 0)
