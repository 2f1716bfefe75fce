"""The policy's hidden states of prompts without answers."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from strop.batch.batch import Batch
from strop.method.services import Scoring, Texts


def prompt_batch(uids: Sequence[int], texts: Texts) -> Batch:
    """A rollout of one turn for each prompt, with the prompt's tokens as the policy's."""
    prompts = [texts.prompt_ids(uid) for uid in uids]
    size_B = torch.tensor([len(ids) for ids in prompts])
    row = torch.arange(len(uids))
    rollout_T = torch.repeat_interleave(row, size_B)
    return Batch({
        "turn_T": rollout_T, "id_T": torch.tensor([id for ids in prompts for id in ids]),
        "mask_T": torch.ones_like(rollout_T, dtype=torch.bool), "rollout_K": row, "group_B": row,
        "uid_P": torch.tensor(list(uids)), "draw_P": torch.zeros_like(row),
    })  # fmt: skip


def each_prompt(batch: Batch, scoring: Scoring, summary: Callable[[int, Tensor], Tensor]) -> Tensor:
    """summary(row, last hidden states [tokens, F]) of every rollout, stacked, float64."""
    found: dict[int, Tensor] = {}
    for rollouts, states in scoring.hidden(batch):
        for row, state in zip(rollouts, states, strict=True):
            found[row] = summary(row, state.double().cpu())
    return torch.stack([found[row] for row in range(batch.size("B"))])
