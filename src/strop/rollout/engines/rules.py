"""Rules that narrow the sampling distribution; each maps scaled logits [N, V] to logits [N, V].

What a rule removes gets -inf. Rules of a request are applied in their order, each to what the
rules before it left. A user's own rule is any hashable, picklable callable of the same shape.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from strop.errors import UserError


@dataclass(frozen=True)
class TopP:
    """Keep the smallest set of most likely tokens with total probability >= p.

    Equal probabilities enter by rising token id; the most likely token always stays.
    """

    p: float  # in (0, 1]

    def __post_init__(self) -> None:
        _check_probability("TopP", self.p)

    def __call__(self, logits: Tensor) -> Tensor:
        ordered, order = logits.sort(dim=-1, descending=True, stable=True)
        probability = ordered.softmax(-1)
        before = probability.cumsum(-1) - probability
        before[..., 0] = 0.0
        return logits.masked_fill((before >= self.p).gather(-1, order.argsort(-1)), -math.inf)


@dataclass(frozen=True)
class TopK:
    """Keep the k most likely tokens, and those exactly as likely as the k-th."""

    k: int  # >= 1; k above the vocabulary keeps all

    def __post_init__(self) -> None:
        if self.k < 1:
            raise UserError(f"TopK.k is {self.k}; it must be at least 1")

    def __call__(self, logits: Tensor) -> Tensor:
        least = logits.topk(min(self.k, logits.shape[-1]), dim=-1).values[..., -1:]
        return logits.masked_fill(logits < least, -math.inf)


@dataclass(frozen=True)
class MinP:
    """Keep tokens with at least p times the probability of the most likely one."""

    p: float  # in (0, 1]

    def __post_init__(self) -> None:
        _check_probability("MinP", self.p)

    def __call__(self, logits: Tensor) -> Tensor:
        least = logits.amax(-1, keepdim=True) + math.log(self.p)
        return logits.masked_fill(logits < least, -math.inf)


@dataclass(frozen=True)
class BanTokens:
    """Never draw these tokens."""

    ids: tuple[int, ...]  # each in [0, V)

    def __post_init__(self) -> None:
        if any(id < 0 for id in self.ids):
            raise UserError(f"BanTokens.ids has {min(self.ids)}; token ids are 0 or more")

    def __call__(self, logits: Tensor) -> Tensor:
        if max(self.ids, default=0) >= logits.shape[-1]:
            raise UserError(
                f"BanTokens.ids has {max(self.ids)}; the vocabulary has {logits.shape[-1]} tokens"
            )
        index = torch.tensor(self.ids, dtype=torch.long, device=logits.device)
        return logits.index_fill(-1, index, -math.inf)


def _check_probability(rule: str, p: float) -> None:
    if not 0 < p <= 1:
        raise UserError(f"{rule}.p is {p}; it must be in (0, 1]")
