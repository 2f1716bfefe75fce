"""Make every edge of a tree of answers a rollout of its own, rewarded by its credit."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.batch import Batch
from strop.method.part import Curated, Result
from strop.parts.curation._rows import own_turns, turn_rows


@dataclass(frozen=True)
class SplitTreeIntoEdges:
    """Each segment of a tree learns once, with the text before it as its context.

        edge: a turn in the rollout for which it was drawn
        reward = its credit, which is the advantage_t of its tokens
        edges of credit 0 and of unscored rollouts leave

    Reads: batch, advantage_T [T] float (constant on an edge), fork_at_B [B] int, scored_B [B] bool.
    Writes: rows to add in place of all; their reward_B is the credit.
    Source: arXiv 2505.23564; code only: AIFrameResearch/SPO (tree episode generator).
    Differs from the source: no.
    Nearest part: none.
    Edges: shared tokens are those before fork_at_B; no edge with credit -> an empty batch.
    """

    def __call__(
        self, batch: Batch, advantage_T: Tensor, fork_at_B: Tensor, scored_B: Tensor
    ) -> Result:
        num = batch.size("K")
        row_N = segments.rows_where(batch["mask_T"])
        policy_K = segments.count(batch["turn_T"], num, batch["mask_T"])
        first_K = policy_K.cumsum(0) - policy_K  # the index of its first policy token
        own_K = own_turns(batch) & scored_B[batch["rollout_K"]]
        credit_K = advantage_T.new_zeros(num)
        credit_K[own_K] = advantage_T[row_N[first_K[own_K]]]
        turns = (own_K & (credit_K != 0)).nonzero().squeeze(1)
        edges = turn_rows(batch, turns).set(reward_B=credit_K[turns])
        nobody_B = torch.zeros_like(scored_B)
        num_edges = int(own_K.sum())
        metrics = {
            "tree/edges": float(num_edges),
            "tree/frac_edges_zero": 1 - turns.shape[0] / max(num_edges, 1),
        }
        return Result(Curated(nobody_B, "split_into_edges", add=edges), metrics=metrics)
