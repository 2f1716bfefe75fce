"""Turns what an engine reported into the four tables of a batch."""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from strop.batch import Batch
from strop.part import Draw
from strop.rollout.engines.base import Event, Request

COLUMNS = (
    "turn_T", "id_T", "mask_T", "origin_T", "version_T", "logp_behavior_T", "logp_sampler_T",
    "entropy_behavior_T",
    "rollout_K", "index_K", "group_B", "rollout_uid_B", "truncated_B", "parent_B", "fork_at_B",
    "uid_P", "draw_P",
)  # fmt: skip


def assemble(
    draws: Sequence[Draw], requests: Sequence[Request], heard: Sequence[Sequence[Event]]
) -> Batch:
    """One single-turn rollout per request, in order; requests of a draw lie together.

    The requests asked for "logp_model" and "entropy". The prompt's tokens have mask 0 and
    log-probabilities 0.
    """
    answers = [list(chain.from_iterable(e.ids for e in events)) for events in heard]
    prompt_size = torch.tensor([len(request.ids) for request in requests])
    answer_size = torch.tensor([len(answer) for answer in answers])
    size_B = prompt_size + answer_size
    rollout_T = torch.repeat_interleave(torch.arange(len(requests)), size_B)
    within = torch.arange(int(size_B.sum())) - (torch.cumsum(size_B, 0) - size_B)[rollout_T]
    mask_T = within >= prompt_size[rollout_T]
    ids = chain.from_iterable(
        chain(request.ids, answer) for request, answer in zip(requests, answers, strict=True)
    )
    versions = [[e.version] * len(e.ids) for events in heard for e in events]
    numbers = torch.arange(len(requests))
    group_B = torch.repeat_interleave(
        torch.arange(len(draws)), torch.tensor([draw.num_rollouts for draw in draws])
    )
    return Batch(
        {
            "turn_T": rollout_T,
            "id_T": torch.tensor(list(ids)),
            "mask_T": mask_T,
            "origin_T": torch.where(mask_T, 0, 1),
            "version_T": _answer_column(versions, mask_T, torch.int64),
            "logp_behavior_T": _answer_column([e.logp for ev in heard for e in ev], mask_T),
            "logp_sampler_T": _answer_column([e.logp_model for ev in heard for e in ev], mask_T),
            "entropy_behavior_T": _answer_column([e.entropy for ev in heard for e in ev], mask_T),
            "rollout_K": numbers,
            "index_K": torch.zeros_like(numbers),
            "group_B": group_B,
            "rollout_uid_B": torch.tensor([request.seed for request in requests]),
            "truncated_B": torch.tensor([events[-1].ended == "length" for events in heard]),
            "parent_B": torch.full_like(numbers, -1),
            "fork_at_B": torch.full_like(numbers, -1),
            "uid_P": torch.tensor([draw.uid for draw in draws]),
            "draw_P": torch.tensor([draw.draw for draw in draws]),
        }
    )


def _answer_column(
    pieces: Sequence[Sequence[Any]], mask_T: Tensor, dtype: torch.dtype = torch.float32
) -> Tensor:
    """A token column from values of the generated tokens only; 0 elsewhere."""
    column = torch.zeros(mask_T.shape[0], dtype=dtype)
    values = list(chain.from_iterable(pieces))
    if values:
        column[mask_T] = torch.tensor(values, dtype=dtype)
    return column
