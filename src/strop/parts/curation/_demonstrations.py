"""Turns given answers into rollouts of a batch; what only an engine could report is void."""

import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.batch import EXPERTS, Batch, level_of, turn_columns
from strop.batch.columns import DEMONSTRATION
from strop.method.services import Grading


def demonstration_rows(
    batch: Batch,
    groups: Tensor,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[int]],
    column: str = "completion",
) -> Batch:
    """One rollout of one turn for each of `groups` [N] int, with the columns of `batch`.

    column: the column of the data that has the answers; the uids of their rollouts depend on it.

    Floats of the token table are NaN (void), version_T is -1; rollout and turn columns that are not
    set here are copied from the group's first rollout.
    """
    first_B = segments.first(batch["group_B"], batch.size("P"))[groups]
    first_K = segments.first(batch["rollout_K"], batch.size("B"))[first_B]
    rows = {"K": first_K, "B": first_B, "P": groups}
    tokens = turn_columns(zip(prompts, answers, strict=True))
    row = torch.arange(len(groups))
    columns = {
        name: _void(name, column, len(tokens["id_T"]))
        if (level := level_of(name)) == "T"
        else (column[rows[level]] if level else column)
        for name, column in batch.columns.items()
    }
    known = {
        **tokens,
        "origin_T": torch.where(tokens["mask_T"], DEMONSTRATION, 1),
        "version_T": torch.full_like(tokens["id_T"], -1),
        "rollout_K": row,
        "index_K": torch.zeros_like(row),
        "group_B": row,
        "rollout_uid_B": -1 - batch["uid_P"][groups] - _apart(column),
        "truncated_B": torch.zeros(len(groups), dtype=torch.bool),
        "exit_B": torch.zeros_like(row),
        "parent_B": torch.full_like(row, -1),
        "fork_at_B": torch.full_like(row, -1),
    }
    return Batch(columns | {name: value for name, value in known.items() if name in columns})


def _apart(column: str) -> int:
    """An offset of uids: answers of another column must differ from a prompt's completion."""
    return 0 if column == "completion" else (1 + zlib.crc32(column.encode()) % 2**20) * 2**40


def _void(name: str, column: Tensor, size: int) -> Tensor:
    """A token column of `size` rows without content: NaN, 0, false, or -1 of experts (0 is one)."""
    fill = float("nan") if column.is_floating_point() else -1 if name == EXPERTS else 0
    return column.new_full((size, *column.shape[1:]), fill)


def graded_rows(demonstrations: Batch, grading: Grading) -> Batch:
    """The rows with the results of the reward functions."""
    found = grading.grade(demonstrations)
    columns = {
        "reward_BM": found.reward_BM, "outcome_B": found.outcome_B, "reward_B": found.outcome_B,
        "scored_B": found.scored_B,
    }  # fmt: skip
    return demonstrations.set(**{k: v for k, v in columns.items() if k in demonstrations.columns})
