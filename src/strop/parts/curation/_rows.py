"""Rollouts of a batch cut down to one of their turns, with all that came before it as context."""

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.batch import Batch

REPLAY = 4  # origin_T


def turn_rows(batch: Batch, turns_N: Tensor) -> Batch:
    """A rollout of one turn for each of the turns `turns_N` [N] int, rows of the turn table.

    Its tokens are those of its context up to the turn's end; only the turn's own keep their mask.
    All other columns are those of the turn, its rollout and its group; parents are forgotten.
    """
    whole = batch.set(within_T=torch.arange(batch.size("T")))  # row of each token in `batch`
    rollout_N = batch["rollout_K"][turns_N]
    taken = whole.take(rollout_N)
    turn_T = batch["turn_T"][taken["within_T"]]
    wanted_T = turns_N[taken["rollout_T"]]
    keep_T = turn_T <= wanted_T
    if "sequence_T" in taken:  # what came before in another context was not seen
        first_K = segments.first(batch["turn_T"], batch.size("K"))
        keep_T &= taken["sequence_T"] == batch["sequence_T"][first_K[turns_N]][taken["rollout_T"]]
    row_N = torch.arange(turns_N.shape[0])
    columns = dict(taken.narrow(keep_T).columns)
    rows_T = taken["rollout_T"][keep_T]
    for name, column in batch.columns.items():
        if name.endswith("_K"):
            columns[name] = column[turns_N]
    columns["turn_T"], columns["rollout_K"] = rows_T, row_N
    columns["mask_T"] = columns["mask_T"] & (turn_T == wanted_T)[keep_T]
    for name in ("parent_B", "fork_at_B"):
        if name in columns:
            columns[name] = torch.full_like(row_N, -1)
    if "index_K" in columns:
        columns["index_K"] = torch.zeros_like(row_N)
    del columns["within_T"]
    return Batch(columns)


def own_turns(batch: Batch) -> Tensor:
    """Turns [K] bool with a policy token that their rollout does not share with its parent."""
    before_T = batch["mask_T"].long().cumsum(0) - batch["mask_T"].long()
    first_B = segments.extreme(before_T, batch["rollout_T"], batch.size("B"), largest=False)
    place_T = before_T - first_B[batch["rollout_T"]]
    own_T = batch["mask_T"] & (place_T >= batch["fork_at_B"][batch["rollout_T"]])
    return segments.count(batch["turn_T"], batch.size("K"), own_T) > 0
