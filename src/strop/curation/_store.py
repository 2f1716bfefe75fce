"""Rollouts that last over steps, as columns in a part's state: shared by the parts that replay."""

from collections.abc import Mapping

import torch
from torch import Tensor

from strop.batch import Batch, level_of
from strop.curation._rows import REPLAY
from strop.errors import UserError


def dated(batch: Batch, step: int) -> Batch:
    """The batch with the step it was made at; its groups stay apart from those of other steps."""
    draw_P = batch["draw_P"] + (step << 20)
    made_B = torch.full((batch.size("B"),), step, dtype=torch.int64)
    return batch.set(draw_P=draw_P, made_at_B=made_B)


def joined(stored: Mapping[str, Tensor], new: Batch) -> Batch:
    """What is stored, then the new rollouts. Raises UserError when their columns differ."""
    if not stored:
        return new
    old = opened(stored, new)
    if odd := sorted(old.columns.keys() ^ new.columns.keys()):
        raise UserError(
            f"the store of rollouts and this step's differ in {', '.join(odd)}; keep the method's "
            "rollout, reward and curation parts when a run goes on"
        )
    return old.join(new)


def opened(stored: Mapping[str, Tensor], batch: Batch) -> Batch:
    """The stored rollouts as a batch, with the numbers of the run that `batch` has."""
    run_wide = {name: column for name, column in batch.columns.items() if not level_of(name)}
    return Batch({**run_wide, **stored})


def columns_of(store: Batch) -> dict[str, Tensor]:
    """What stays in a part's state: the columns of the store but the numbers of the run."""
    return {name: column for name, column in store.columns.items() if level_of(name)}


def as_rows(drawn: Batch, batch: Batch, step: int) -> Batch:
    """The drawn rollouts with the columns of `batch`, those of earlier steps marked as replayed."""
    old_T = drawn["mask_T"] & (drawn["made_at_B"] < step)[drawn["rollout_T"]]
    drawn = drawn.set(origin_T=torch.where(old_T, REPLAY, drawn["origin_T"]))
    return Batch({name: drawn[name] for name in batch.columns})


def in_groups(rows: Batch, batch: Batch, groups: list[int]) -> Batch:
    """The rollouts as members of these groups of `batch`, one of each."""
    index_N = torch.tensor(groups)
    columns = {
        name: batch[name][index_N] if level_of(name) == "P" else column
        for name, column in rows.columns.items()
    }
    return Batch({**columns, "group_B": torch.arange(len(groups))})
