"""Pool the states of the policy's last layer over an answer into one vector."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch.batch import Batch
from strop.batch.columns import Column
from strop.method.services import Scoring


@dataclass(frozen=True)
class PoolStates:
    """Later parts see each answer as one vector of the policy's states, as input for a head.

        state_B = mean over the answer's policy tokens of Z_t / sqrt(D)

    Z_t [D] is the state of a token after the last norm, of the current policy. One forward pass
    without gradient; only one micro-batch's states exist at a time.

    Reads: batch (the tokens), scoring (hidden states).
    Writes: state_BM [B, D] float.
    Source: none, ours. Reward models use the state of the last token.
    Differs from the source: no.
    Nearest part: measure_state_ranks, which counts the directions that the states use.
    Edges: an answer without a token -> 0.
    """

    writes: ClassVar[tuple[str, ...]] = ("state_BM",)
    declares: ClassVar[tuple[Column, ...]] = (
        Column("state_BM", "float", "mean last hidden state of the answer", door=None),
    )
    facts: ClassVar[frozenset[str]] = frozenset({"scores_again"})

    def __call__(self, batch: Batch, scoring: Scoring) -> Tensor:
        found: dict[int, Tensor] = {}
        for rollouts, states in scoring.hidden(batch):
            for rollout, state_ND in zip(rollouts, states, strict=True):
                wide_ND = state_ND.float()
                total_D = wide_ND.sum(0) / max(wide_ND.shape[0], 1)
                found[rollout] = total_D / wide_ND.shape[1] ** 0.5
        rows = [found[b] for b in range(batch.size("B"))]
        return (torch.stack(rows) if rows else torch.zeros(0, 1)).to(batch["turn_T"].device)
