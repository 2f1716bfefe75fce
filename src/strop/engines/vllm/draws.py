"""Draws tokens inside a vLLM of this process, as strop's own engine does.

It is one of vLLM's logits processors: it draws every row's token by its request and leaves vLLM no
other one to take. So temperature, rules, seeds and statistics are those of the local engine.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from strop.engines.base import Request
from strop.engines.sampling import Plan, draw, make_plan, uniforms
from strop.engines.vllm.inside.strop_processors import PerRequest

ASKED = "strop"  # the argument of a request that holds its `Drawn`


class Drawn(Protocol):
    """A row whose tokens are drawn. tokens: those so far. record: that of the newest draw."""

    request: Request
    tokens: list[int]
    record: np.ndarray
    kept: bytes  # of the newest draw
    refused: str  # why rules could not be applied


class Draws(PerRequest[Drawn]):
    """Draws for the requests of this process's engine."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.plan: Plan | None = None
        self.planned: list[Request] = []  # the requests of the plan

    def read(self, params: Any) -> Drawn | None:
        """The row of a request."""
        found: Drawn | None = (params.extra_args or {}).get(ASKED)
        return found

    def change(self, logits: Tensor, rows: dict[int, Drawn]) -> Tensor:
        """Logits in which only the drawn token is possible."""
        drawn = list(rows.values())
        requests = [each.request for each in drawn]
        if self.plan is None or self.planned != requests:
            self.plan, self.planned = make_plan(requests, logits.shape[1], logits.device), requests
        seeds = np.array([request.seed & (2**64 - 1) for request in requests], np.uint64)
        positions = np.array([len(each.tokens) for each in drawn], np.uint64)
        bits = torch.from_numpy(uniforms(seeds, positions)).to(logits.device)
        index = torch.tensor(list(rows), device=logits.device)
        token, record, sets = draw(logits[index], self.plan, bits)
        logits[index] = -torch.inf
        logits[index, token] = 0.0
        for row, (each, values) in enumerate(zip(drawn, record.cpu().numpy(), strict=True)):
            each.record = values
            each.kept = b"" if sets is None else sets[row]
            each.refused = self.plan.refused.get(each.request.rules, "")
        return logits
