"""Credit each stretch of an answer between two forks with the change in the mean outcome."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop import segments
from strop.advantage.credit._lineage import node_values, pairs_of, policy_tokens_before
from strop.part import Result


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
    Differs from the source: a node is its prefix; the released code takes nodes of two branches at
    the same position for one.
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
        num = reward_B.shape[0]
        pairs = pairs_of(group_B, num_groups, parent_B, fork_at_B, length_B)
        pairs = pairs.where(scored_B[pairs.one_N] & scored_B[pairs.other_N])
        before_T, start_B = policy_tokens_before(rollout_T, mask_T, num)
        position_T = before_T - start_B[rollout_T]
        learns_T = mask_T & scored_B[rollout_T]
        if not bool(learns_T.any()):
            return Result(reward_B.new_zeros(mask_T.shape), metrics={"tree/frac_tokens_shared": 0})
        width = int(torch.maximum(length_B.max(), position_T.max())) + 2
        key_N, order_N = torch.sort(pairs.one_N * width + pairs.common_N)
        value_N = node_values(pairs, reward_B)[order_N]
        # A rollout's places lie between first and last; its own end is the last of them.
        row_B = torch.arange(num, device=key_N.device)
        first_B = torch.searchsorted(key_N, row_B * width)
        last_B = torch.searchsorted(key_N, (row_B + 1) * width) - 1
        # Places at or before each policy token of the step, those of earlier rollouts included.
        # One behind a rollout's policy tokens is passed with the first of the next.
        tokens_B = segments.count(rollout_T, num, mask_T)
        at_N = start_B[pairs.one_N] + torch.minimum(pairs.common_N, tokens_B[pairs.one_N])
        passed = torch.bincount(at_N, minlength=mask_T.shape[0] + 1).cumsum(0)
        end_T = torch.where(learns_T, torch.minimum(passed[before_T], last_B[rollout_T]), 0)
        begin_T = torch.where(learns_T, torch.maximum(end_T - 1, first_B[rollout_T]), 0)
        advantage_T = torch.where(learns_T, value_N[end_T] - value_N[begin_T], 0)
        shared_T = mask_T & (parent_B >= 0)[rollout_T] & (position_T < fork_at_B[rollout_T])
        share = float(shared_T.sum() / mask_T.sum())
        return Result(advantage_T, metrics={"tree/frac_tokens_shared": share})
