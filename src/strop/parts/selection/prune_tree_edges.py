"""Learn from fewer of a tree's edges: none at some depths, and only the extremes deep down."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.method.part import Result, Selected, require
from strop.support.errors import UserError


@dataclass(frozen=True)
class PruneTreeEdges:
    """Some edges of a tree are sampled and scored, but left out of the gradient.

        depth: those at a depth of `depths` go, a window that moves up by one depth every `interval`
               steps until its first one is at `below`; it stays if that one is not deeper
        width: of those at depth `below` or deeper, over all trees, floor(share * n) and at least
               two stay: half of them the best, half the worst

    An edge is a rollout of one turn, as split_tree_into_edges creates them.
    Metrics: tree/frac_edges_pruned.

    Reads: depth_T [T] int, advantage_B [B] float, scored_B [B] bool, mask_T [T] bool, rollout_T [T]
    int, step [] int.
    Writes: gradient_T, denominator_T [T] bool.
    Source: arXiv 2509.06040; code only: Fredreic1849/BranchGRPO (width mode 2).
    Differs from the source: its width is pruned at steps after the last split, here at the last
    depths.
    Nearest part: keep_spread_advantages.
    Edges: unscored rollouts go; of equal advantages the first rows count as higher; depth before
    width.
    """

    facts: ClassVar[frozenset[str]] = frozenset({"order_breaks_ties"})
    # Depths whose edges do not learn, 0 for the first segments. Default: released code (none).
    depths: tuple[int, ...] = ()
    # Steps after which that window moves. Default: released code (script).
    interval: int = 30
    # The depth from which width is pruned, and where the window stops. Default: ours.
    below: int = 0
    # Share of the edges from there on that learn. Default: released code (0.5).
    share: float = 0.5

    def __post_init__(self) -> None:
        require(self, "interval", low=1)
        require(self, "below", low=0)
        require(self, "share", low=0.0, high=1.0)
        if any(depth < 0 for depth in self.depths):
            raise UserError(f"prune_tree_edges.depths are 0 or more, they are {self.depths}")

    def pruned_at(self, step: int) -> list[int]:
        """The depths that do not learn in a step, counted from 0."""
        room = max(0, min(self.depths, default=0) - self.below)
        return [depth - min(step // self.interval, room) for depth in self.depths]

    def __call__(
        self,
        depth_T: Tensor,
        advantage_B: Tensor,
        scored_B: Tensor,
        mask_T: Tensor,
        rollout_T: Tensor,
        step: Tensor,
    ) -> Result:
        num = advantage_B.shape[0]
        row_N = mask_T.nonzero().squeeze(1)
        at_B = segments.first(rollout_T[row_N], num)
        there_B = scored_B & (at_B < row_N.shape[0])
        depth_B = torch.full_like(at_B, -1)
        depth_B[there_B] = depth_T[row_N[at_B[there_B]]]
        pruned = torch.tensor(self.pruned_at(int(step) - 1), device=depth_B.device)
        keep_B = there_B & ~torch.isin(depth_B, pruned.to(depth_B.dtype))
        late = (keep_B & (depth_B >= self.below)).nonzero().squeeze(1)
        stay = min(max(2, int(self.share * late.shape[0] + 1e-9)), late.shape[0])
        order = late[advantage_B[late].argsort(descending=True, stable=True)]
        keep_B[order[stay // 2 : order.shape[0] - (stay - stay // 2)]] = False
        keep_T = mask_T & keep_B[rollout_T]
        gone = float((there_B & ~keep_B).sum()) / max(int(there_B.sum()), 1)
        selected = Selected(keep_T, keep_T, "pruned_edge")
        return Result(selected, metrics={"tree/frac_edges_pruned": gone})
