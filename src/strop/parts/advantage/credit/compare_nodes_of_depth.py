"""Compare every node of a tree of answers with the nodes as deep as it is."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.columns import Column
from strop.method.part import Result, require


@dataclass(frozen=True)
class CompareNodesOfDepth:
    """A segment learns by the value of the node that it leads to, among those of its depth.

        advantage = (V(node) - mean) / (std + eps), within +-clamp; over the nodes of that depth of
        the prompt's tree, each of them once; std with n - 1

    A turn is an edge and its state the node above it, as in back_up_tree_values, whose value of
    that node stands at the turn's first policy token. A leaf is worth its reward.
    Metrics: tree/frac_depths_alike, the share of depths without a difference.

    Reads: prefix_value_T [T] float (NaN: not known), reward_B [B] float, scored_B [B] bool,
    rollout_K, index_K, state_K, group_K [K] int, turn_T [T] int, mask_T [T] bool.
    Writes: advantage_T [T] float, depth_T [T] int (0 for the first segment).
    Source: arXiv 2509.06040; code only: Fredreic1849/BranchGRPO.
    Differs from the source: no.
    Nearest part: credit_value_steps, which compares a node with the one above it.
    Edges: one node at a depth, or a deviation below 1e-6 -> 0; unscored rollouts -> 0, and their
    leaves are not compared.
    """

    writes: ClassVar[tuple[str, ...]] = ("advantage_T", "depth_T")
    declares: ClassVar[tuple[Column, ...]] = (
        Column("depth_T", "int", "segments of the answer before the token's own", "reward",
               random="key:3"),
    )  # fmt: skip
    # Added to the deviation, reward units. Default: released code.
    eps: float = 1e-8
    # Largest advantage either way. Default: released code.
    clamp: float = 5.0

    def __post_init__(self) -> None:
        require(self, "eps", "clamp", low=0.0)

    def __call__(
        self,
        prefix_value_T: Tensor,
        reward_B: Tensor,
        scored_B: Tensor,
        rollout_K: Tensor,
        index_K: Tensor,
        state_K: Tensor,
        group_K: Tensor,
        turn_T: Tensor,
        mask_T: Tensor,
    ) -> Result:
        turn_K = torch.arange(rollout_K.shape[0], device=rollout_K.device)
        row_N = mask_T.nonzero().squeeze(1)
        first_K = segments.first(turn_T[row_N], turn_K.shape[0])
        written_K = first_K < row_N.shape[0]
        above_K = prefix_value_T.new_full(rollout_K.shape, torch.nan)
        above_K[written_K] = prefix_value_T[row_N[first_K[written_K]]]
        # The node that an edge leads to: that above the next turn, or a leaf of its own.
        last_K = segments.ends(rollout_K)
        leaf_K = torch.where(scored_B[rollout_K], reward_B[rollout_K], torch.nan)
        value_K = torch.where(last_K, leaf_K, above_K.roll(-1))
        node_K, num = segments.key_of(group_K, index_K, state_K)
        below_K = torch.where(last_K, num + turn_K, node_K.roll(-1))
        once_K = segments.first(below_K, num + turn_K.shape[0])[below_K] == turn_K
        once_K &= written_K & ~value_K.isnan()
        depth_K, num = segments.key_of(group_K, index_K)
        apart_K = value_K - segments.mean(value_K, depth_K, num, once_K)[depth_K]
        std_P = segments.std(value_K, depth_K, num, once_K)
        std_P = torch.where(segments.count(depth_K, num, once_K) > 1, std_P, 0)
        alike_P = std_P < 1e-6
        found_K = (apart_K / (std_P + self.eps)[depth_K]).clamp(-self.clamp, self.clamp)
        there_K = scored_B[rollout_K] & ~value_K.isnan() & ~alike_P[depth_K]
        found_K = torch.where(there_K, found_K, 0)
        advantage_T = torch.where(mask_T, segments.at(found_K, turn_T), 0)
        metrics = {"tree/frac_depths_alike": segments.overall(alike_P.double())}
        return Result((advantage_T, segments.at(index_K, turn_T)), metrics=metrics)
