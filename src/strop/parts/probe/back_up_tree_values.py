"""Value every node of a tree of answers by the nodes that follow it."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.columns import Column
from strop.method.part import Result


@dataclass(frozen=True)
class BackUpTreeValues:
    """A node is worth the mean of its children, however many leaves each of them has.

        V(leaf) = reward;  V(node) = mean V(children);  spread(node) = deviation (n) of V(children)

    A turn is an edge, its state the node above it; turns of a group with equal states leave the
    same node, and those that also arrive at the same state are one edge. Both numbers are written
    at the turn's first policy token.

    Reads: state_K, rollout_K, index_K, group_K [K] int, reward_B [B] float, scored_B [B] bool,
    turn_T [T] int, mask_T [T] bool.   Writes: prefix_value_T, value_std_T [T] float (NaN
    elsewhere).
    Source: arXiv 2505.23564; code only: AIFrameResearch/SPO.
    Differs from the source: no; leaves without a score are left out.
    Nearest part: estimate_values_by_continuing.
    Edges: node without scored leaf -> NaN; a state reached at two depths is two nodes.
    """

    writes: ClassVar[tuple[str, ...]] = ("prefix_value_T", "value_std_T")
    declares: ClassVar[tuple[Column, ...]] = (
        Column(
            "value_std_T",
            "float",
            "deviation of the values below the node; NaN: none",
            "reward",
            random="uniform",
        ),
    )

    def __call__(
        self,
        state_K: Tensor,
        rollout_K: Tensor,
        index_K: Tensor,
        group_K: Tensor,
        reward_B: Tensor,
        scored_B: Tensor,
        turn_T: Tensor,
        mask_T: Tensor,
    ) -> Result:
        node_K, num = segments.key_of(group_K, index_K, state_K)
        turn_K = torch.arange(node_K.shape[0], device=node_K.device)
        last_K = segments.ends(rollout_K)
        # What an edge arrives at: the node below it, or a leaf of its own.
        child_K = torch.where(last_K, num + turn_K, node_K.roll(-1))
        value_N = reward_B.new_full((num + turn_K.shape[0],), torch.nan)
        leaf_K = torch.where(scored_B[rollout_K], reward_B[rollout_K], torch.nan)
        value_N[num:] = leaf_K
        std_N = torch.full_like(value_N, torch.nan)
        way_K, ways = segments.key_of(node_K, child_K)
        edge_K = segments.first(way_K, ways)[way_K] == turn_K
        for depth in range(int(index_K.max()) if index_K.numel() else -1, -1, -1):
            here_K = edge_K & (index_K == depth) & ~value_N[child_K].isnan()
            below_K = value_N[child_K]
            nodes = torch.unique(node_K[here_K])
            value_N[nodes] = segments.mean(below_K, node_K, num, here_K)[nodes]
            std_N[nodes] = segments.std(below_K, node_K, num, here_K, ddof=0)[nodes]
        return Result((_at_starts(value_N[node_K], turn_T, mask_T),
                       _at_starts(std_N[node_K], turn_T, mask_T)))  # fmt: skip


def _at_starts(value_K: Tensor, turn_T: Tensor, mask_T: Tensor) -> Tensor:
    """The value [T] at every turn's first policy token, NaN elsewhere."""
    row_N = mask_T.nonzero().squeeze(1)
    first_K = segments.first(turn_T[row_N], value_K.shape[0])
    has_K = first_K < row_N.shape[0]
    value_T = value_K.new_full(mask_T.shape, torch.nan)
    value_T[row_N[first_K[has_K]]] = value_K[has_K]
    return value_T
