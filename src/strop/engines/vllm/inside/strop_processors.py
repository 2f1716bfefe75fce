"""Applies the rules of requests inside vLLM, as one of its logits processors.

vLLM has two interfaces for these, one for each of its model runners; the class here has both. It is
applied to logits at temperature 1, so a request with rules is sent with temperature 1 (or 0), and
with its own temperature beside the rules: the sampling distribution is then that of strop's
engines, and so are the log-probabilities that vLLM reports.
"""

from __future__ import annotations

import json
from typing import Any, Generic, TypeVar

import torch
from vllm.v1.sample.logits_processor import LogitsProcessor as OfFirst
from vllm.v1.sample.logits_processor import process_dict_updates
from vllm.v1.worker.gpu.sample.logits_processor import LogitsProcessor as OfSecond

try:
    from . import strop_rules
except ImportError:  # in vLLM's environment this file is a top-level module
    import strop_rules  # type: ignore[no-redef, import-not-found]

ASKED = "strop_rules"  # among a request's further arguments
Argument = TypeVar("Argument")


class PerRequest(OfFirst, OfSecond, Generic[Argument]):
    """Finds the rows of the logits whose requests have an argument for this processor."""

    def __init__(self, *_: Any) -> None:
        self.asked: dict[int, Argument] = {}  # by place in the batch, or slot

    def read(self, params: Any) -> Argument | None:
        """The argument of a request; None: it has none."""
        raise NotImplementedError

    def change(self, logits: torch.Tensor, rows: dict[int, Argument]) -> torch.Tensor:
        """The logits [N, V] with those rows changed."""
        raise NotImplementedError

    # ---- from here on: vLLM's interfaces

    def is_argmax_invariant(self) -> bool:
        """False: it may change the likeliest token."""
        return False

    def update_state(self, batch_update: Any) -> None:
        """First interface: requests were added, removed and moved."""
        process_dict_updates(self.asked, batch_update, lambda params, *_: self.read(params))

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """Second interface: a request takes a slot."""
        self.asked.pop(req_idx, None)
        found = self.read(sampling_params)
        if found is not None:
            self.asked[req_idx] = found
        return found is not None

    def apply(self, logits: torch.Tensor, ctx: Any = None) -> torch.Tensor:
        """Both interfaces; ctx: in the second, it has the slots of the rows."""
        if not self.asked:
            return logits
        slots = range(len(logits)) if ctx is None else ctx.expanded_idx_mapping.tolist()
        rows = {row: self.asked[slot] for row, slot in enumerate(slots) if slot in self.asked}
        return self.change(logits, rows) if rows else logits


class Rules(PerRequest[tuple[float, Any]]):
    """Applies the rules of each request in their order."""

    @classmethod
    def validate_params(cls, params: Any) -> None:
        """Raise ValueError for a rule that is not known here."""
        cls.parsed(params)

    @staticmethod
    def parsed(params: Any) -> tuple[float, list[tuple[str, dict[str, Any]]]] | None:
        """Temperature, and each rule's function and arguments; None where there are none."""
        text = (params.extra_args or {}).get(ASKED)
        if text is None:
            return None
        temperature, rules = json.loads(text)
        unknown = [name for name, _ in rules if not callable(getattr(strop_rules, name, None))]
        if unknown:
            raise ValueError(f"no rule {unknown[0]!r} here")
        return float(temperature), rules

    def read(self, params: Any) -> tuple[float, Any] | None:
        return self.parsed(params)

    def change(self, logits: torch.Tensor, rows: dict[int, tuple[float, Any]]) -> torch.Tensor:
        for row, (temperature, rules) in rows.items():
            scaled = logits[row : row + 1] / (temperature or 1.0)
            for name, numbers in rules:
                scaled = getattr(strop_rules, name)(scaled, **numbers)
            logits[row] = scaled[0]
        return logits
