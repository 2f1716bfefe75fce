"""Measure how many directions an answer's hidden states use, and how that number grows."""

from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor

from strop.batch.batch import Batch
from strop.batch.columns import Column
from strop.method.part import require
from strop.method.services import Scoring

TINY = 1e-8


@dataclass(frozen=True)
class MeasureStateRanks:
    """Later parts see how widely a rollout's states spread, how fast, and how that speed changes.

        ER(Z) = exp(-sum_j p_j ln(p_j + 1e-8)), p = s / (sum s + 1e-8), s the singular values of Z
                with its column means removed;  0 for fewer than 2 tokens
        rank_B = ER(all states);  m_j = ER(the first j stride + 1 of the last `window` states)
        d_j = m_j - mean(m_1 .. m_{j-1}), j >= 2
        rank_speed_B = mean d_j;  rank_turn_B = mean (d_j - d_{j-1});  0 where there is none

    Z are the states of the policy tokens after the last norm. One forward pass without gradient;
    only one micro-batch's states exist at a time.

    Reads: batch (the tokens), scoring (hidden states).
    Writes: rank_B, rank_speed_B, rank_turn_B [B] float.
    Source: arXiv 2509.23808; code hf618/VERL (metrics_utils.py).
    Differs from the source: no.
    Nearest part: none.
    Edges: fewer than 2 stride tokens in the window -> speed and turn 0.
    """

    writes: ClassVar[tuple[str, ...]] = ("rank_B", "rank_speed_B", "rank_turn_B")
    declares: ClassVar[tuple[Column, ...]] = (
        Column("rank_B", "float", "effective rank of the states", random="uniform"),
        Column("rank_speed_B", "float", "how fast it grows", random="uniform"),
        Column("rank_turn_B", "float", "how that speed changes", random="uniform"),
    )
    facts: ClassVar[frozenset[str]] = frozenset({"scores_again"})
    # Tokens from one prefix to the next. Default: released code (40).
    stride: int = 40
    # Last tokens from which prefixes are taken; 0: all. Default: released code (512).
    window: int = 512

    def __post_init__(self) -> None:
        require(self, "stride", low=1)
        require(self, "window", low=0)

    def __call__(self, batch: Batch, scoring: Scoring) -> tuple[Tensor, Tensor, Tensor]:
        found = torch.zeros(batch.size("B"), 3)
        for rollouts, states in scoring.hidden(batch):
            for rollout, state_ND in zip(rollouts, states, strict=True):
                found[rollout] = torch.tensor(self.ranks(state_ND))
        found = found.to(batch["turn_T"].device)
        return found[:, 0], found[:, 1], found[:, 2]

    def ranks(self, state_ND: Tensor) -> tuple[float, float, float]:
        """Rank, speed and turn of the states [N, D] of one rollout's tokens, in order."""
        last_ND = state_ND[-self.window :] if self.window else state_ND
        ends = range(self.stride + 1, last_ND.shape[0] + 1, self.stride)
        if last_ND.shape[0] < 2 * self.stride:
            ends = range(0)
        prefixes = [effective_rank(last_ND[:end]) for end in ends]
        return effective_rank(state_ND), *changes(prefixes)


def effective_rank(state_ND: Tensor) -> float:
    """exp of the entropy of the singular values' shares; 0 for fewer than two rows."""
    if state_ND.shape[0] < 2:
        return 0.0
    wide_ND = state_ND.double()
    centred_ND = wide_ND - wide_ND.mean(0)
    few = centred_ND.shape[0] <= centred_ND.shape[1]
    gram = centred_ND @ centred_ND.T if few else centred_ND.T @ centred_ND
    singular = torch.linalg.eigvalsh(gram).clamp(min=0).sqrt()
    share = singular / (singular.sum() + TINY)
    return float(torch.exp(-(share * (share + TINY).log()).sum()))


def changes(ranks: list[float]) -> tuple[float, float]:
    """Mean distance of a rank from the mean of those before it, and mean change of that."""
    gaps = [rank - sum(ranks[:j]) / j for j, rank in enumerate(ranks) if j]
    turns = [after - before for before, after in pairwise(gaps)]
    speed = sum(gaps) / len(gaps) if gaps else 0.0
    return speed, sum(turns) / len(turns) if turns else 0.0
