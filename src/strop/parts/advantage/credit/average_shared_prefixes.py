"""Give the tokens that several rollouts share the mean of those rollouts' advantages."""

from dataclasses import dataclass

from torch import Tensor

from strop.batch import segments
from strop.parts.advantage.credit._lineage import node_values, pairs_of, stretches


@dataclass(frozen=True)
class AverageSharedPrefixes:
    """A token that several rollouts took from one draw learns from what they earned together.

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
        learns_T = mask_T & segments.at(scored_B, rollout_T)
        row_N = segments.rows_where(learns_T)
        advantage_T = advantage_B.new_zeros(mask_T.shape)
        if not row_N.numel():
            return advantage_T
        pairs = pairs_of(group_B, num_groups, parent_B, fork_at_B, length_B)
        pairs = pairs.where(scored_B[pairs.one_N] & scored_B[pairs.other_N])
        # The rollouts that share a token are those that share the stretch that it lies in.
        tokens_B = segments.count(rollout_T, advantage_B.shape[0], mask_T)
        order_M, _, size_M = stretches(pairs, tokens_B)
        value_M = node_values(pairs, advantage_B)[order_M]
        advantage_T[row_N] = segments.spread(value_M, size_M)
        return advantage_T
