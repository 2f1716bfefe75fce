"""The policy's hidden states of prompts without answers."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from strop.batch.batch import Batch, turn_columns
from strop.method.services import Scoring, Texts


def prompt_batch(uids: Sequence[int], texts: Texts) -> Batch:
    """A rollout of one turn for each prompt, with the prompt's tokens as the policy's."""
    row = torch.arange(len(uids))
    return Batch({
        **turn_columns(((), texts.prompt_ids(uid)) for uid in uids), "rollout_K": row,
        "group_B": row, "uid_P": torch.tensor(list(uids)), "draw_P": torch.zeros_like(row),
    })  # fmt: skip


def each_prompt(batch: Batch, scoring: Scoring, summary: Callable[[int, Tensor], Tensor]) -> Tensor:
    """summary(row, last hidden states [tokens, F]) of every rollout, stacked, float64."""
    found: dict[int, Tensor] = {}
    for rollouts, states in scoring.hidden(batch):
        for row, state in zip(rollouts, states, strict=True):
            found[row] = summary(row, state.double().cpu())
    return torch.stack([found[row] for row in range(batch.size("B"))])
