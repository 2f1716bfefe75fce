"""Credit each stretch of an answer between two forks with the change in the mean outcome."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result
from strop.parts.advantage.credit._lineage import node_values, pairs_of, stretches


@dataclass(frozen=True)
class CreditBetweenForks:
    """A stretch of tokens learns by how much better its end does than its beginning.

        advantage_t = V(b_j) - V(b_{j-1})   for b_{j-1} <= t < b_j
        V(b) = mean reward of the group's rollouts that have the first b tokens from the same draw

    b_0 = 0, then the places where another rollout parts from this one, then its end, where V is
    its own reward. Metric: tree/frac_tokens_shared (tokens before their rollout's own fork).

    Reads: reward_B [B] float, scored_B [B] bool, group_B, parent_B, fork_at_B, length_B [B] int,
    num_groups int, rollout_T [T] int, mask_T [T] bool.   Writes: advantage_T [T] float.
    Source: arXiv 2601.05053, sec. 3.2.
    Differs from the source: a node is its prefix; the released code treats nodes of two branches
    at the same position as one.
    Nearest part: spread_evenly; equal to it after subtract_group_mean when nothing forks.
    Edges: equal rewards -> exactly 0; unscored -> 0 and in no mean; a rollout whose parent left
    the batch counts as one that began at the prompt.
    """

    def __call__(
        self,
        reward_B: Tensor,
        scored_B: Tensor,
        group_B: Tensor,
        parent_B: Tensor,
        fork_at_B: Tensor,
        length_B: Tensor,
        rollout_T: Tensor,
        mask_T: Tensor,
        num_groups: int,
    ) -> Result:
        learns_T = mask_T & segments.at(scored_B, rollout_T)
        row_N = segments.rows_where(learns_T)
        if not row_N.numel():
            return Result(reward_B.new_zeros(mask_T.shape), metrics={"tree/frac_tokens_shared": 0})
        pairs = pairs_of(group_B, num_groups, parent_B, fork_at_B, length_B)
        pairs = pairs.where(scored_B[pairs.one_N] & scored_B[pairs.other_N])
        tokens_B = segments.count(rollout_T, reward_B.shape[0], mask_T)
        order_M, follows_M, size_M = stretches(pairs, tokens_B)
        value_M = node_values(pairs, reward_B)[order_M]
        rise_M = torch.where(follows_M, value_M - value_M.roll(1), 0)
        advantage_T = reward_B.new_zeros(mask_T.shape)
        advantage_T[row_N] = segments.spread(rise_M, size_M)
        shared_B = torch.where(parent_B >= 0, torch.minimum(fork_at_B, tokens_B), 0)
        share = float(shared_B.clamp(min=0).sum() / mask_T.sum())
        return Result(advantage_T, metrics={"tree/frac_tokens_shared": share})
