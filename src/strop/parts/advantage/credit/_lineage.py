"""Rollouts that fork from each other: how much of their answers they share by descent."""

from typing import NamedTuple

import torch
from torch import Tensor

from strop.batch import segments


class Pairs(NamedTuple):
    """Every rollout with every rollout of its group, itself included; a rollout's pairs adjacent.

    Both took the first `common_N` tokens of their answers from the same draw.
    """

    one_N: Tensor
    other_N: Tensor
    common_N: Tensor

    def where(self, kept_N: Tensor) -> "Pairs":
        """The pairs that `kept_N` selects."""
        return Pairs(*(column[kept_N] for column in self))


def pairs_of(
    group_B: Tensor, num_groups: int, parent_B: Tensor, fork_at_B: Tensor, length_B: Tensor
) -> Pairs:
    """All pairs within groups. A rollout shares with its parent the tokens before its fork.

    Rollouts without a common ancestor share nothing, even if their tokens are equal. Raises
    ValueError when a parent lies in another group or is its own descendant.
    """
    one_N, other_N = segments.pairs(group_B, num_groups)
    size_P = segments.count(group_B, num_groups)
    from_BG = _taken_from(group_B, parent_B, fork_at_B, length_B, size_P).int()
    rows = one_N.shape[0]
    both = segments.at(from_BG, one_N), segments.at(from_BG, other_N)
    common_N = torch.minimum(*both).amax(1).long() if rows else one_N
    return Pairs(one_N, other_N, common_N)


def _taken_from(
    group_B: Tensor, parent_B: Tensor, fork_at_B: Tensor, length_B: Tensor, size_P: Tensor
) -> Tensor:
    """How many first tokens a rollout [B] has from each rollout of its group [G] or its ancestors.

    The rollout's own length for itself, 0 for rollouts that it does not descend from.
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
    """Per pair [N], the mean reward of all rollouts that go through the place where the pair parts.

    These are the rollouts that share at least `common` tokens with the pair's first one; equal
    rewards give exactly their value.
    """
    if not pairs.one_N.numel():
        return reward_B.new_zeros(0)
    # A rollout's pairs are sorted from the longest shared text to the shortest: those before a
    # pair, and those that share as much, go through its place.
    longest = int(pairs.common_N.max())
    key_N, order_N = in_order(pairs.one_N * (longest + 1) - pairs.common_N)
    one_N, reward_N = pairs.one_N[order_N], reward_B[pairs.other_N[order_N]]
    place_N = segments.place_in_run(one_N, reward_B.shape[0])
    like_S = torch.unique_consecutive(key_N, return_counts=True)[1]
    last_N = torch.repeat_interleave(like_S.cumsum(0) - 1, like_S)
    at_N = (one_N[last_N], place_N[last_N])
    empty_BG = reward_N.new_zeros(reward_B.shape[0], segments.count_of(place_N))

    def until(fill: float) -> Tensor:
        return empty_BG.fill_(fill).index_put((one_N, place_N), reward_N)

    mean_N = until(0).double().cumsum(1)[at_N] / (at_N[1] + 1)
    low_N, high_N = (
        until(torch.inf).cummin(1).values[at_N],
        until(-torch.inf).cummax(1).values[at_N],
    )
    mean_N = torch.minimum(torch.maximum(mean_N.to(reward_N.dtype), low_N), high_N)
    return torch.empty_like(mean_N).index_put((order_N,), mean_N)


def in_order(key_N: Tensor) -> tuple[Tensor, Tensor]:
    """Keys in ascending order, and their rows; equal keys stay in the order of rows."""
    if key_N.device.type != "cpu" or not key_N.numel():
        return torch.sort(key_N, stable=True)
    order = key_N.numpy().argsort(kind="stable")
    order_N = torch.from_numpy(order)
    return segments.at(key_N, order_N), order_N


class Stretches(NamedTuple):
    """The answers cut at the places where rollouts part: a stretch for each of `Pairs`.

    order_M: the pairs by rollout, then by place; a rollout's own end is the last of its places.
    follows_M: whether a stretch of the same rollout comes before. size_M: its policy tokens, 0
    where several rollouts part at one place; tokens after the last place are in the last stretch.
    """

    order_M: Tensor
    follows_M: Tensor
    size_M: Tensor


def stretches(pairs: Pairs, tokens_B: Tensor) -> Stretches:
    """The stretches of rollouts with `tokens_B` policy tokens; there must be at least one pair."""
    _, order_M = in_order(pairs.one_N * segments.count_of(pairs.common_N) + pairs.common_N)
    one_M = pairs.one_N[order_M]
    follows_M = ~segments.begins(one_M)
    most_M = tokens_B[one_M]
    before_M = torch.minimum(pairs.common_N[order_M], most_M)
    before_M = torch.where(follows_M.roll(-1), before_M, most_M)
    size_M = before_M - torch.where(follows_M, before_M.roll(1), 0)
    return Stretches(order_M, follows_M, size_M)
