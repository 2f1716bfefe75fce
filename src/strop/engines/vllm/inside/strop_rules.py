"""The functions of sampling rules: scaled logits [N, V] and a rule's numbers -> logits.

A removed token gets -inf. `strop.engines.rules` has the rules that use these functions. vLLM's
workers import this file too, in an environment without strop: it uses torch alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

COOLEST = 0.05  # least factor on the temperature


def top_p(logits: Tensor, p: float) -> Tensor:
    """Keep the smallest set of most likely tokens with total probability >= p.

    Equal probabilities enter by rising token id; the most likely token always stays.
    """
    ordered, order = logits.sort(dim=-1, descending=True, stable=True)
    probability = ordered.softmax(-1)
    before = probability.cumsum(-1) - probability
    before[..., 0] = 0.0
    return logits.masked_fill((before >= p).gather(-1, order.argsort(-1)), -math.inf)


def top_k(logits: Tensor, k: int) -> Tensor:
    """Keep the k most likely tokens, and those exactly as likely as the k-th."""
    least = logits.topk(min(k, logits.shape[-1]), dim=-1).values[..., -1:]
    return logits.masked_fill(logits < least, -math.inf)


def min_p(logits: Tensor, p: float) -> Tensor:
    """Keep tokens with at least p times the probability of the most likely one."""
    least = logits.amax(-1, keepdim=True) + math.log(p)
    return logits.masked_fill(logits < least, -math.inf)


def ban_tokens(logits: Tensor, ids: Sequence[int]) -> Tensor:
    """Never draw these tokens."""
    index = torch.tensor(ids, dtype=torch.long, device=logits.device)
    return logits.index_fill(-1, index, -math.inf)


def warm_by_entropy(
    logits: Tensor, tau: float, middle: float, up: float, down: float, bound: float
) -> Tensor:
    """Logits divided by max(1 + tau h, 0.05), h from their entropy H.

    d = (log max(H, 1e-8) - middle) * (up where d > 0, else down), held within `bound`.
    """
    entropy: Tensor = torch.special.entr(logits.softmax(-1)).sum(-1, keepdim=True)
    off = entropy.clamp(min=1e-8).log() - middle
    signal = (off * torch.where(off > 0, up, down)).clamp(-bound, bound)
    return logits / (1 + tau * signal).clamp(min=COOLEST)
