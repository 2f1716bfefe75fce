"""Scores texts under contexts that no rollout has."""

from collections.abc import Sequence

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.batch import Batch, turn_columns
from strop.method.services import Scoring
from strop.support.errors import UserError

# The tokens that are given, and those after them whose log-probabilities are requested.
Context = tuple[tuple[int, ...], tuple[int, ...]]


def mean_logp(scoring: Scoring, contexts: Sequence[Context]) -> Tensor:
    """Mean log-probability [N] of each context's requested tokens under the current policy, nats.

    Equal contexts are scored once. Both halves of a context need a token.
    """
    distinct = list(dict.fromkeys(contexts))
    if not distinct:
        return torch.zeros(0)
    row_N = torch.arange(len(distinct))
    rows = {"rollout_K": row_N, "group_B": row_N, "uid_P": row_N, "draw_P": row_N * 0}
    batch = Batch({**turn_columns(distinct), **rows})
    logp_T = scoring.score(batch, "current", ("logp_T",))["logp_T"].cpu()
    mean_N = segments.mean(logp_T, batch["rollout_T"], len(distinct), batch["mask_T"])
    place = {context: row for row, context in enumerate(distinct)}
    return mean_N[torch.tensor([place[context] for context in contexts])]


def turns_of(batch: Batch) -> list[list[tuple[tuple[int, ...], tuple[int, ...]]]]:
    """For each rollout, its turns as (tokens before the action, tokens of the action).

    The action begins at a turn's first policy token; a turn without one has an empty action.
    """
    ids = batch["id_T"].tolist()
    found: list[list[tuple[tuple[int, ...], tuple[int, ...]]]] = [
        [] for _ in range(batch.size("B"))
    ]
    rows = zip(batch["rollout_K"].tolist(), *bounds_of(batch), strict=True)
    for rollout, start, cut, end in rows:
        found[rollout].append((tuple(ids[start:cut]), tuple(ids[cut:end])))
    return found


def bounds_of(batch: Batch) -> tuple[list[int], list[int], list[int]]:
    """For each turn its first row, that of its action, and the row after its last one."""
    if batch.contexts()[1] > batch.size("B"):
        raise UserError(
            "this method takes a turn's context from the turns before it, and the environment "
            "rewrites it: give an environment that does not (Replay: rewrites=False)"
        )
    turn_T, mask_T, num = batch["turn_T"], batch["mask_T"], batch.size("K")
    size_K = segments.count(turn_T, num)
    end_K = size_K.cumsum(0)
    row_T = torch.arange(turn_T.shape[0], device=turn_T.device)
    first_K = segments.extreme(row_T, turn_T, num, mask_T, largest=False)
    cut_K = torch.where(segments.count(turn_T, num, mask_T) > 0, first_K, end_K)
    return (end_K - size_K).tolist(), cut_K.tolist(), end_K.tolist()
