"""Measure how much the hidden states of a rollout's tokens point the same way."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch import segments
from strop.batch.batch import Batch
from strop.batch.columns import Column
from strop.method.services import Scoring


@dataclass(frozen=True)
class MeasureAngles:
    """A rollout whose tokens have similar states has an angle near 1, a varied one near 0.

        angle_i = mean over tokens s <= t of cos(x_s, x_t), prompts and observations included
        x: last hidden states of the policy that is about to be trained

    Reads: batch; scoring.   Writes: angle_B [B] float.
    Source: arXiv 2506.02281; code wangqinsi1/GAINRL.
    Differs from the source: the last layer's output, there the input of its MLP.
    Nearest part: measure_state_ranks.
    Edges: one token -> 1; no token -> 0. It costs a forward pass of the policy.
    """

    facts: ClassVar[frozenset[str]] = frozenset({"scores_again"})
    writes: ClassVar[tuple[str, ...]] = ("angle_B",)
    declares: ClassVar[tuple[Column, ...]] = (
        Column("angle_B", "float", "mean cosine between the hidden states of its tokens",
               random="uniform"),
    )  # fmt: skip

    def __call__(self, batch: Batch, scoring: Scoring) -> Tensor:
        angle_B = torch.zeros(batch.size("B"), device=batch["turn_T"].device)
        whole = batch.set(mask_T=torch.ones_like(batch["mask_T"]))
        for rollouts, states in scoring.hidden(whole):
            for row, state_TF in zip(rollouts, states, strict=True):
                num = state_TF.shape[0]
                pairs = float(segments.mean_cosine(state_TF.double(), state_TF.double()))
                angle_B[row] = (num * pairs + 1) / (num + 1) if num else 0.0
        return angle_B
