"""Reads the right answers of prompts, and grades answers that a probe composed, like rollouts."""

from collections.abc import Sequence

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.batch import Batch, turn_columns
from strop.method.services import Grading, Texts
from strop.support.errors import UserError


def answer_of(texts: Texts, uid: int, column: str, reader: str, otherwise: str) -> tuple[int, ...]:
    """The tokens of a column of the prompt's row: of several values the first; without one none.

    Raises UserError for prompts without the column; `otherwise`: what to do then.
    """
    row = texts.row(uid)
    if column not in row:
        raise UserError(
            f"{reader} reads the column {column}, which the prompts do not have (there are "
            f"{', '.join(row) or 'none'}): {otherwise}"
        )
    found = row[column]
    if isinstance(found, list | tuple):
        found = found[0] if found else None
    return () if found is None else texts.encode(str(found))


def grade(
    texts: Texts,
    grading: Grading,
    uids: Sequence[int],
    answers: Sequence[Sequence[int]],
    groups: Sequence[int],
) -> tuple[Tensor, Tensor]:
    """Outcome [N] and whether it is known [N] of answers to the prompts `uids`.

    groups: 0, 1, ... for each answer; those of a group are graded as rollouts of one prompt.
    """
    prompts = [texts.prompt_ids(uid) for uid in uids]
    uid_of = dict(zip(groups, uids, strict=True))
    graded = grading.grade(
        Batch(
            {
                **turn_columns(zip(prompts, answers, strict=True)),
                "rollout_K": torch.arange(len(uids)),
                "group_B": torch.tensor(groups),
                "rollout_uid_B": -1 - torch.arange(len(uids)),
                "uid_P": torch.tensor([uid_of[group] for group in range(len(uid_of))]),
                "draw_P": torch.arange(len(uid_of)),
            }
        )
    )
    return graded.outcome_B, graded.scored_B


def prefixes(batch: Batch, chosen_T: Tensor, after: bool) -> list[tuple[int, int, tuple[int, ...]]]:
    """For each chosen token its prompt's uid, the policy tokens before it, and all ids before it.

    The ids are those of its context. after: count the token itself as well.
    """
    rows = chosen_T.nonzero().squeeze(1)
    rollouts, ends = batch["rollout_T"][rows], rows + after
    starts = (batch["size_B"].cumsum(0) - batch["size_B"])[rollouts]
    context_T, num = batch.contexts()
    seen = segments.first(context_T, num)[context_T[rows]]
    drawn = torch.nn.functional.pad(batch["mask_T"].long().cumsum(0), (1, 0))
    lengths = (drawn[ends] - drawn[starts]).tolist()
    uids, ids = batch["uid_P"][batch["group_B"]][rollouts].tolist(), batch["id_T"].tolist()
    pieces = [tuple(ids[a:b]) for a, b in zip(seen.tolist(), ends.tolist(), strict=True)]
    return list(zip(uids, lengths, pieces, strict=True))
