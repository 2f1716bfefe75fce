"""Cuts rollouts of a batch down to single turns, each with everything before it as context."""

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.batch import Batch, level_of


def turn_rows(batch: Batch, turns_N: Tensor) -> Batch:
    """A rollout of one turn for each of the turns `turns_N` [N] int, rows of the turn table.

    Its tokens are those of its context up to the turn's end; only the turn's own keep their mask.
    All other columns are those of the turn, its rollout and its group; parents are dropped.
    """
    rollout_N = batch["rollout_K"][turns_N]
    kept_P, group_N = torch.unique(batch["group_B"][rollout_N], return_inverse=True)
    size_K, size_B = segments.count(batch["turn_T"], batch.size("K")), batch["size_B"]
    begin_K, begin_B = size_K.cumsum(0) - size_K, size_B.cumsum(0) - size_B
    begin_N, end_N = begin_B[rollout_N], (begin_K + size_K)[turns_N]
    row_T = segments.ranges(begin_N, end_N - begin_N)  # the row in `batch` of each of its tokens
    index_N = torch.arange(turns_N.shape[0], device=turns_N.device)
    edge_T = segments.spread(index_N, end_N - begin_N)
    own_T = row_T >= segments.spread(begin_K[turns_N], end_N - begin_N)
    if "sequence_T" in batch:  # earlier tokens of another context were not seen
        seen_N = batch["sequence_T"][begin_K[turns_N]]
        seen_T = segments.at(batch["sequence_T"], row_T) == segments.at(seen_N, edge_T)
        row_T, edge_T, own_T = row_T[seen_T], edge_T[seen_T], own_T[seen_T]
    rows = {"T": row_T, "K": turns_N, "B": rollout_N, "P": kept_P}
    columns = {
        name: segments.at(column, rows[level]) if (level := level_of(name)) else column
        for name, column in batch.columns.items()
        if name != "turn_T"
    }
    columns["turn_T"], columns["rollout_K"], columns["group_B"] = edge_T, index_N, group_N
    columns["mask_T"] &= own_T
    for name in ("parent_B", "fork_at_B"):
        if name in columns:
            columns[name] = torch.full_like(index_N, -1)
    if "index_K" in columns:
        columns["index_K"] = torch.zeros_like(index_N)
    return Batch(columns)


def own_turns(batch: Batch) -> Tensor:
    """Turns [K] bool with a policy token that their rollout does not share with its parent."""
    policy_K = segments.count(batch["turn_T"], batch.size("K"), batch["mask_T"])
    until_K = segments.sum_until(policy_K, batch["rollout_K"], batch.size("B"))
    return (policy_K > 0) & (until_K > batch["fork_at_B"][batch["rollout_K"]])
