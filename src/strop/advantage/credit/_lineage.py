"""Rollouts that fork from each other: how much of their answers they share by descent."""

from typing import NamedTuple

import torch
from torch import Tensor

from strop import segments


class Pairs(NamedTuple):
    """Every rollout with every rollout of its group, itself included; a rollout's pairs together.

    The two have the first `common_N` tokens of their answers from one and the same draw.
    """

    one_N: Tensor
    other_N: Tensor
    common_N: Tensor

    def where(self, kept_N: Tensor) -> "Pairs":
        """Only some of the pairs."""
        return Pairs(*(column[kept_N] for column in self))


def pairs_of(
    group_B: Tensor, num_groups: int, parent_B: Tensor, fork_at_B: Tensor, length_B: Tensor
) -> Pairs:
    """All pairs within groups. A rollout shares with its parent the tokens before its fork.

    Rollouts without a common ancestor share nothing, be their tokens equal or not. Raises
    ValueError when a parent lies in another group or is its own descendant.
    """
    one_N, other_N = segments.pairs(group_B, num_groups)
    size_P = segments.count(group_B, num_groups)
    from_BG = _taken_from(group_B, parent_B, fork_at_B, length_B, size_P)
    rows = one_N.shape[0]
    common_N = torch.minimum(from_BG[one_N], from_BG[other_N]).amax(1) if rows else one_N
    return Pairs(one_N, other_N, common_N)


def _taken_from(
    group_B: Tensor, parent_B: Tensor, fork_at_B: Tensor, length_B: Tensor, size_P: Tensor
) -> Tensor:
    """How many first tokens of a rollout [B] stand in each rollout of its group [G] or before it.

    Its own length for itself, 0 for those that it does not descend from.
    """
    place_B = segments.order_within(group_B, size_P.shape[0])
    widest = int(size_P.max()) if size_P.numel() else 0
    from_BG = length_B.new_zeros(group_B.shape[0], widest)
    row = at = torch.arange(group_B.shape[0], device=group_B.device)
    left = length_B
    for _ in range(widest):
        from_BG[row, place_B[at]] = left
        descends = parent_B[at] >= 0
        row, left, child = row[descends], left[descends], at[descends]
        left, at = torch.minimum(left, fork_at_B[child]), parent_B[child]
        if bool((group_B[at] != group_B[row]).any()):
            raise ValueError("parent_B names a rollout of another group")
    if row.numel():
        raise ValueError("parent_B has a rollout that descends from itself")
    return from_BG


def node_values(pairs: Pairs, reward_B: Tensor) -> Tensor:
    """Per pair [N], the mean reward of all rollouts that go through the place where it parts.

    These are the rollouts that share at least `common` tokens with the pair's first one; equal
    rewards give exactly their value.
    """
    num_pairs = pairs.one_N.shape[0]
    size_B = segments.count(pairs.one_N, reward_B.shape[0])
    start_B = size_B.cumsum(0) - size_B
    wide_N = size_B[pairs.one_N]
    pair_M = torch.repeat_interleave(torch.arange(num_pairs, device=wide_N.device), wide_N)
    within_M = torch.arange(pair_M.shape[0], device=pair_M.device)
    within_M = within_M - (wide_N.cumsum(0) - wide_N)[pair_M]
    third_M = start_B[pairs.one_N[pair_M]] + within_M
    through_M = pairs.common_N[third_M] >= pairs.common_N[pair_M]
    reward_M = reward_B[pairs.other_N[third_M]]
    low_N = segments.extreme(reward_M, pair_M, num_pairs, through_M, largest=False)
    high_N = segments.extreme(reward_M, pair_M, num_pairs, through_M)
    mean_N = segments.mean(reward_M, pair_M, num_pairs, through_M)
    return torch.minimum(torch.maximum(mean_N, low_N), high_N)


def position_of(rollout_T: Tensor, mask_T: Tensor, num: int) -> Tensor:
    """Number of policy tokens before each token in its rollout [T]; rollouts lie in order."""
    before_T, start_B = policy_tokens_before(rollout_T, mask_T, num)
    return before_T - start_B[rollout_T]


def policy_tokens_before(rollout_T: Tensor, mask_T: Tensor, num: int) -> tuple[Tensor, Tensor]:
    """Number of policy tokens of the step before each token [T] and before each rollout [B]."""
    size_B = segments.count(rollout_T, num, mask_T)
    return mask_T.cumsum(0) - mask_T.to(torch.int64), size_B.cumsum(0) - size_B
